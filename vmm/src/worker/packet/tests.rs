use std::io::{Read, Write};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn soon() -> Take {
    Take::Until(Some(Instant::now() + Duration::from_millis(50)))
}

/// Sends bytes as they are.
fn send_raw(socket: &OwnedFd, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) {
    send_packet(socket.as_fd(), parts, descriptors, None).unwrap();
}

fn sealed(content: &[u8], seals: SealFlags) -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    File::from(memory.try_clone().unwrap()).write_all(content).unwrap();
    fcntl_add_seals(&memory, seals).unwrap();
    memory
}

#[test]
fn messages_of_every_size_arrive_whole_and_in_order() {
    let (here, there) = pair();
    let sizes = [0, 1, MOST_INLINE - 8, MOST_INLINE, MOST_INLINE + 1, 5 << 20];
    for size in sizes {
        let message: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
        send(here.as_fd(), &message, &[], None).unwrap();
        send(here.as_fd(), &size, &[], None).unwrap();
        let (received, descriptors) = receive::<Vec<u8>>(there.as_fd(), soon()).unwrap();
        assert!(received == message && descriptors.is_empty(), "{size}");
        assert_eq!(receive::<usize>(there.as_fd(), soon()).unwrap().0, size);
    }
}

#[test]
fn descriptors_arrive_with_their_message_however_long_it_is() {
    let (here, there) = pair();
    for size in [1, 2 * MOST_INLINE] {
        let pipes: Vec<_> = (0..MOST_DESCRIPTORS).map(|_| std::io::pipe().unwrap()).collect();
        let sent: Vec<_> = pipes.iter().map(|(_, writer)| writer.as_fd()).collect();
        send(here.as_fd(), &vec![7u8; size], &sent, None).unwrap();
        let (_, received) = receive::<Vec<u8>>(there.as_fd(), soon()).unwrap();
        assert_eq!(received.len(), MOST_DESCRIPTORS);
        for ((mut reader, writer), other) in pipes.into_iter().zip(received) {
            drop(writer);
            File::from(other).write_all(b"x").unwrap();
            let mut byte = String::new();
            reader.read_to_string(&mut byte).unwrap();
            assert_eq!(byte, "x");
        }
    }
}

#[test]
fn what_is_peeked_at_stays() {
    let (here, there) = pair();
    assert!(matches!(receive::<u32>(there.as_fd(), Take::Peek), Err(PacketError::TimedOut)));
    send(here.as_fd(), &vec![1u8; 2 * MOST_INLINE], &[], None).unwrap();
    drop(here);
    for _ in 0..3 {
        assert_eq!(receive::<Vec<u8>>(there.as_fd(), Take::Peek).unwrap().0.len(), 2 * MOST_INLINE);
    }
    receive::<Vec<u8>>(there.as_fd(), soon()).unwrap();
    assert!(matches!(receive::<u32>(there.as_fd(), Take::Peek), Err(PacketError::Closed)));
}

#[test]
fn a_silent_other_side_is_not_waited_for_for_ever() {
    let (here, there) = pair();
    assert!(matches!(receive::<u32>(there.as_fd(), soon()), Err(PacketError::TimedOut)));
    let message = vec![0u8; MOST_INLINE - 16];
    let full = (0..1000).find_map(|_| {
        let deadline = Some(Instant::now() + Duration::from_millis(50));
        send(here.as_fd(), &message, &[], deadline).err()
    });
    assert!(matches!(full, Some(PacketError::TimedOut)), "{full:?}");
    drop(there);
    assert!(matches!(send(here.as_fd(), &1, &[], None), Err(PacketError::Closed)));
}

#[test]
fn what_is_no_message_is_refused() {
    let (pipe, _writer) = std::io::pipe().unwrap();
    let all = SealFlags::WRITE | SealFlags::SHRINK;
    let good = sealed(&[3, 1, 2, 3], all);
    let (unsealed, can_shrink) =
        (sealed(&[3, 1, 2, 3], SealFlags::empty()), sealed(&[3, 1, 2, 3], SealFlags::WRITE));
    let len = |len: u64| len.to_le_bytes();
    let cases: Vec<(Vec<&[u8]>, Option<BorrowedFd<'_>>)> = vec![
        (vec![&[9]], None),
        (vec![&[INLINE]], None),
        (vec![&[INLINE, 200]], None),
        (vec![&[INLINE, 1, 5, 5]], None),
        (vec![&[IN_MEMORY]], None),
        (vec![&[IN_MEMORY], &[4, 0, 0, 0, 0, 0, 0, 0]], None),
        (vec![&[IN_MEMORY], &[4, 0, 0]], Some(good.as_fd())),
        (vec![&[IN_MEMORY], &[4, 0, 0, 0, 0, 0, 0, 0]], Some(pipe.as_fd())),
        (vec![&[IN_MEMORY], &[4, 0, 0, 0, 0, 0, 0, 0]], Some(unsealed.as_fd())),
        (vec![&[IN_MEMORY], &[4, 0, 0, 0, 0, 0, 0, 0]], Some(can_shrink.as_fd())),
        (vec![&[IN_MEMORY], &[5, 0, 0, 0, 0, 0, 0, 0]], Some(good.as_fd())),
        (vec![&[IN_MEMORY], &[255; 8]], Some(good.as_fd())),
        (vec![&[0; MOST_INLINE], &[0; 100]], None),
    ];
    for (number, (parts, descriptor)) in cases.iter().enumerate() {
        let (here, there) = pair();
        send_raw(&here, parts, descriptor.as_slice());
        let received = receive::<Vec<u8>>(there.as_fd(), soon());
        assert!(matches!(received, Err(PacketError::Malformed(_))), "{number}: {received:?}");
    }
    let (here, there) = pair();
    send_raw(&here, &[&[IN_MEMORY], &len(4)], &[good.as_fd()]);
    assert_eq!(receive::<Vec<u8>>(there.as_fd(), soon()).unwrap().0, [1, 2, 3]);
}

#[test]
fn refused_messages_leave_no_descriptor_open() {
    let (here, there) = pair();
    let (mut reader, writer) = std::io::pipe().unwrap();
    send_raw(&here, &[&[9]], &[writer.as_fd()]);
    drop(writer);
    receive::<Vec<u8>>(there.as_fd(), soon()).unwrap_err();
    // The end comes only when nobody has the writing end.
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn every_sample_of_the_fuzz_target_is_a_message() {
    let samples = crate::worker::testing::samples().unwrap();
    assert!(samples.iter().all(|sample| crate::worker::testing::examine(sample)));
    // Its machine is one that is looked at to the end.
    crate::worker::testing::saved().validate().unwrap();
    let inline = crate::worker::testing::receive(&[&[INLINE], &samples[0][..]].concat(), None, false);
    assert_eq!(inline.unwrap(), samples[0]);
    let header = [&[IN_MEMORY], &(samples[0].len() as u64).to_le_bytes()[..]].concat();
    assert_eq!(crate::worker::testing::receive(&header, Some(&samples[0]), true).unwrap(), samples[0]);
    assert!(crate::worker::testing::receive(&header, Some(&samples[0]), false).is_err());
}

/// Set in the process in which a limit of its own is lowered.
const ALONE: &str = "HAYFORK_TEST_FEW_DESCRIPTORS";

#[test]
fn a_full_table_is_not_the_other_side_s_fault_and_many_descriptors_are() {
    if std::env::var_os(ALONE).is_none() {
        let name =
            "worker::packet::tests::a_full_table_is_not_the_other_side_s_fault_and_many_descriptors_are";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.args([name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (here, there) = pair();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let free = File::open("/dev/null").unwrap();
    let limit = getrlimit(Resource::Nofile);
    let few = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&free)).unwrap() + 1;
    drop(free);
    setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..limit }).unwrap();
    send(here.as_fd(), &1u8, &[pipe.as_fd(), pipe.as_fd()], None).unwrap();
    send(here.as_fd(), &2u8, &[pipe.as_fd()], None).unwrap();
    let full = receive::<u8>(there.as_fd(), soon());
    assert!(matches!(full, Err(PacketError::NoDescriptors(_))), "{full:?}");
    // What was taken of it is closed again, and the next one comes.
    assert_eq!(receive::<u8>(there.as_fd(), soon()).unwrap().0, 2);
    setrlimit(Resource::Nofile, limit).unwrap();

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let many = [pipe.as_fd(); 12];
    ancillary.push(SendAncillaryMessage::ScmRights(&many));
    sendmsg(&here, &[IoSlice::new(&[INLINE, 1])], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
    let many = receive::<u8>(there.as_fd(), soon());
    assert!(matches!(many, Err(PacketError::Malformed("it has too many descriptors"))), "{many:?}");
}
