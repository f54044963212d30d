use super::*;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn all(bytes: &[u8]) -> Vec<DriverEvent> {
    Lines::default().push(bytes, Some(TOKEN))
}

#[test]
fn understands_each_line_and_keeps_their_order() {
    assert_eq!(all(b"ready\n"), [DriverEvent::Ready]);
    let both = format!("renewed\nnothing\n{TOKEN} done 7\n");
    assert_eq!(all(both.as_bytes()), [DriverEvent::Renewed, DriverEvent::Done(7)]);
    for code in [0, 1, 42, 255] {
        assert_eq!(all(format!("{TOKEN} done {code}\n").as_bytes()), [DriverEvent::Done(code)]);
    }
}

#[test]
fn a_line_may_come_in_pieces() {
    let mut lines = Lines::default();
    let line = format!("{TOKEN} done 7\n");
    for byte in &line.as_bytes()[..line.len() - 1] {
        assert_eq!(lines.push(&[*byte], Some(TOKEN)), []);
    }
    assert_eq!(lines.push(b"\n", Some(TOKEN)), [DriverEvent::Done(7)]);
}

#[test]
fn garbage_in_front_does_no_harm() {
    let mut flood = vec![b'x'; 100_000];
    flood.extend(format!("{TOKEN} done 3\n").bytes());
    assert_eq!(all(&flood), [DriverEvent::Done(3)]);
    let mut lines = Lines::default();
    for _ in 0..1000 {
        assert_eq!(lines.push(&[0xff; 999], Some(TOKEN)), []);
        assert!(lines.held.len() <= 2 * MAX_LINE + 999);
    }
    assert_eq!(lines.push(format!("{TOKEN} done 0\n").as_bytes(), Some(TOKEN)), [DriverEvent::Done(0)]);
}

#[test]
fn nothing_else_counts() {
    let other = "f".repeat(32);
    let wrong = [
        format!("{other} done 0\n"),
        format!("{TOKEN} done 256\n"),
        format!("{TOKEN} done -1\n"),
        format!("{TOKEN} done \n"),
        format!("{TOKEN} done 0000\n"),
        format!("{TOKEN} done 0 \n"),
        format!("{TOKEN}done 0\n"),
        format!("{TOKEN} done 0"),
        "\n\n \n".to_owned(),
        " done 0\n".to_owned(),
        "not ready\n".to_owned(),
        "not renewed\n".to_owned(),
    ];
    for line in wrong {
        assert_eq!(all(line.as_bytes()), [], "{line:?}");
    }
    assert_eq!(Lines::default().push(format!("{TOKEN} done 0\n").as_bytes(), None), []);
}

#[test]
fn a_forged_line_before_the_true_one_is_ignored() {
    let text = format!("{} done 9\n{TOKEN} done 1\n", "0".repeat(32));
    assert_eq!(all(text.as_bytes()), [DriverEvent::Done(1)]);
}
