//! Headers, and packets in chains of every shape.

use proptest::prelude::*;
use virtio_vsock::packet::{PKT_HEADER_SIZE, VsockPacket};

use super::super::packet::{HEADER_LEN, Header, Op};
use super::super::testing::{Guest, from_guest};
use super::{data, device, open};
use crate::virtio::testing::Segment;

/// The header's bytes against an implementation of other people.
#[test]
fn header_agrees_with_the_virtio_vsock_crate() {
    assert_eq!(HEADER_LEN, PKT_HEADER_SIZE);
    let header = Header {
        src_cid: 0x0102_0304_0506_0708,
        dst_cid: 0x1112_1314_1516_1718,
        src_port: 0x2122_2324,
        dst_port: 0x3132_3334,
        len: 5,
        type_: 0x4142,
        op: 0x5152,
        flags: 0x6162_6364,
        buf_alloc: 0x7172_7374,
        fwd_cnt: 0x8182_8384,
    };
    let mut guest = Guest::new(false);
    guest.send(&header, b"hello", &[44]).unwrap();
    let mut chain = guest.tx_queue.next_chain(&guest.mem).unwrap().unwrap();
    let packet = VsockPacket::from_tx_virtq_chain(&guest.mem, &mut chain, 65536).unwrap();
    assert_eq!(packet.src_cid(), header.src_cid);
    assert_eq!(packet.dst_cid(), header.dst_cid);
    assert_eq!(packet.src_port(), header.src_port);
    assert_eq!(packet.dst_port(), header.dst_port);
    assert_eq!(packet.len(), header.len);
    assert_eq!(packet.type_(), header.type_);
    assert_eq!(packet.op(), header.op);
    assert_eq!(packet.flags(), header.flags);
    assert_eq!(packet.buf_alloc(), header.buf_alloc);
    assert_eq!(packet.fwd_cnt(), header.fwd_cnt);
}

#[test]
fn operations_have_the_numbers_of_the_specification() {
    for n in 0..=u16::MAX {
        match Op::from_u16(n) {
            Some(op) => assert_eq!(op as u16, n),
            None => assert!(n == 0 || n > 7),
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_and_encode_to_themselves(bytes: [u8; 32], tail: [u8; 12]) {
        let mut all = [0; HEADER_LEN];
        all[..32].copy_from_slice(&bytes);
        all[32..].copy_from_slice(&tail);
        prop_assert_eq!(Header::decode(&all).encode(), all);
    }
}

/// Every place where a two-part chain can be cut, the middle of each header field included.
#[test]
fn a_packet_cut_anywhere_arrives_whole() {
    let payload = b"cut me anywhere";
    let whole = u32::try_from(HEADER_LEN + payload.len()).unwrap();
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    for at in 0..=whole {
        for second in [0, 1, 7] {
            guest.send(&data(1000, 52, payload.len()), payload, &[at, second]).unwrap();
            guest.run(&mut device).unwrap();
            assert_eq!(guest.reap(), 1);
            assert_eq!(host.read_available().0, payload, "cut at {at}, {second}");
        }
    }
}

/// The shape that the virtio-vsock crate refuses and Linux uses: header, then several pieces.
#[test]
fn a_payload_in_many_descriptors_arrives_whole() {
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    let payload: Vec<u8> = (0..60_000u32).map(|i| (i / 7) as u8).collect();
    let mut cuts = vec![44];
    cuts.extend([1000; 50]);
    guest.send(&data(1000, 52, payload.len()), &payload, &cuts).unwrap();
    guest.run(&mut device).unwrap();
    assert!(host.read_available().0 == payload);

    // One byte per descriptor, for a header alone.
    let request = from_guest(1000, 52, Op::CreditRequest);
    guest.send(&request, &[], &[1; HEADER_LEN]).unwrap();
    guest.offer(4096, &[1; 60]).unwrap();
    guest.run(&mut device).unwrap();
    assert_eq!(guest.receive().unwrap().0.op(), Some(Op::CreditUpdate));
}

/// A packet that crosses the border of two memory regions is contiguous for the guest only.
#[test]
fn a_packet_across_memory_regions_arrives_whole() {
    use vm_memory::{Bytes, GuestAddress};
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    let payload = [0xa5; 100];
    let mut bytes = data(1000, 52, payload.len()).encode().to_vec();
    bytes.extend(payload);
    let border = 5u64 << 20;
    for before in [1, 20, 43, 44, 45, 100] {
        let addr = border - before;
        guest.mem.write_slice(&bytes, GuestAddress(addr)).unwrap();
        let len = u32::try_from(bytes.len()).unwrap();
        guest.tx.add(&[Segment::readable(addr, len)]).unwrap();
        guest.run(&mut device).unwrap();
        assert_eq!(host.read_available().0, payload);
    }
}

#[test]
fn a_packet_in_an_indirect_table_arrives_whole() {
    use vm_memory::{Bytes, GuestAddress};
    let mut guest = Guest::new(false);
    let mut device = device();
    let (_, mut host) = open(&mut guest, &mut device, 1000, 52);
    let mut bytes = data(1000, 52, 3).encode().to_vec();
    bytes.extend(b"abc");
    guest.mem.write_slice(&bytes, GuestAddress(0x20_0000)).unwrap();
    guest
        .tx
        .add_indirect(0x30_0000, &[Segment::readable(0x20_0000, 40), Segment::readable(0x20_0028, 7)])
        .unwrap();
    guest.run(&mut device).unwrap();
    assert_eq!(host.read_available().0, b"abc");
}
