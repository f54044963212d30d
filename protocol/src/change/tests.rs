use super::*;
use proptest::prelude::*;

fn kinds() -> impl Strategy<Value = ChangeKind> {
    use ChangeKind::*;
    prop::sample::select(vec![Created, Written, Removed, Renamed, Attributes, Overflow])
}

fn records() -> impl Strategy<Value = Record> {
    let change = (kinds(), ".{0,40}", prop::option::of(".{0,40}"), any::<bool>());
    prop_oneof![
        9 => change.prop_map(|(kind, path, to, directory)| Record::Change(Change { kind, path, to, directory })),
        1 => Just(Record::Flushed),
    ]
}

fn decode(bytes: &[u8], step: usize) -> Result<Vec<Record>, RecordError> {
    let mut decoder = Decoder::default();
    let mut all = Vec::new();
    for piece in bytes.chunks(step) {
        decoder.push(piece);
        while let Some(record) = decoder.next()? {
            all.push(record);
        }
        assert!(decoder.buffer.len() < MAX_RECORD + step);
    }
    Ok(all)
}

#[test]
fn the_longest_paths_fit_and_longer_ones_are_refused() {
    let path = "\u{fffd}".repeat(MAX_PATH);
    let mut change =
        Change { kind: ChangeKind::Renamed, path: path.clone(), to: Some(path), directory: true };
    let mut bytes = Vec::new();
    encode(&Record::Change(change.clone()), &mut bytes).unwrap();
    assert!(bytes.len() <= MAX_RECORD);
    assert_eq!(decode(&bytes, 1000).unwrap(), [Record::Change(change.clone())]);
    change.path += &"x".repeat(MAX_CHANGE_PATH);
    let before = bytes.len();
    assert!(matches!(encode(&Record::Change(change), &mut bytes), Err(RecordError::Length(_))));
    assert_eq!(bytes.len(), before);
}

#[test]
fn lengths_that_no_record_has_are_refused_before_anything_is_stored() {
    for length in [0, MAX_RECORD - 1, 0xffff] {
        let bytes = u16::try_from(length).unwrap().to_le_bytes();
        assert_eq!(decode(&bytes, 1), Err(RecordError::Length(length)));
    }
    // A record that is shorter than its length says.
    assert_eq!(decode(&[2, 0, 1, 1], 9), Err(RecordError::Undecodable));
    assert_eq!(decode(&[1, 0, 9], 9), Err(RecordError::Undecodable));
}

#[test]
fn a_part_of_a_record_waits_for_the_rest() {
    let mut decoder = Decoder::default();
    assert!(decoder.is_empty());
    decoder.push(&[1]);
    assert_eq!(decoder.next(), Ok(None));
    assert!(!decoder.is_empty());
    decoder.push(&[0, 1]);
    assert_eq!(decoder.next(), Ok(Some(Record::Flushed)));
    assert!(decoder.is_empty());
}

proptest! {
    #[test]
    fn records_survive_every_cut(all in prop::collection::vec(records(), 0..30), step in 1usize..200) {
        let mut bytes = Vec::new();
        for record in &all {
            encode(record, &mut bytes).unwrap();
        }
        prop_assert_eq!(decode(&bytes, step).unwrap(), all);
    }

    #[test]
    fn any_bytes_decode_or_fail_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096), step in 1usize..300) {
        let _ = decode(&bytes, step);
    }
}
