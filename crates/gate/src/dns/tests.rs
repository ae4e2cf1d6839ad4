//! Questions and answers, well-formed and not.

use proptest::prelude::*;

use super::*;

fn question(name: &str, kind: u16) -> Vec<u8> {
    ask(7, name, kind)
}

fn with_extension(mut message: Vec<u8>) -> Vec<u8> {
    message[11] = 1;
    message.extend_from_slice(&[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    message
}

#[test]
fn a_question_is_read_and_answered() {
    let asked = Question::read(&question("Example.com", A)).expect("it is one");
    assert_eq!(asked.name.as_deref(), Some("Example.com"));
    let answer = asked.answer(Some(Record::Address([127, 64, 1, 0].into())));
    assert_eq!(
        read_answer(&answer, 7, "example.com", A),
        Some(Answered::Addresses(vec![[127, 64, 1, 0].into()]))
    );
    let empty = asked.answer(None);
    assert_eq!(
        read_answer(&empty, 7, "example.com", A),
        Some(Answered::Addresses(Vec::new()))
    );
    for (id, name, kind) in [
        (8, "example.com", A),
        (7, "example.org", A),
        (7, "example.com", AAAA),
    ] {
        assert_eq!(read_answer(&answer, id, name, kind), None);
    }
}

#[test]
fn a_refusal_says_why_only_to_who_can_read_it() {
    let plain = Question::read(&question("a.b", A)).expect("it is one");
    let refusal = plain.refusal(Code::NoSuchName, "why");
    assert_eq!(
        read_answer(&refusal, 7, "a.b", A),
        Some(Answered::NoSuchName)
    );
    assert_eq!(refusal.len(), question("a.b", A).len());
    let extended = Question::read(&with_extension(question("a.b", A))).expect("it is one");
    let refusal = extended.refusal(Code::NoSuchName, &"why ".repeat(1000));
    assert!(refusal.len() <= 1232);
    assert!(refusal.windows(4).any(|four| four == b"why "));
}

#[test]
fn what_is_no_question_is_told_so_or_left() {
    let fine = question("a.b", A);
    let with = |at: usize, byte: u8| {
        let mut message = fine.clone();
        message[at] = byte;
        Question::read(&message)
    };
    // An answer gets none.
    assert_eq!(with(2, 0x81).map_err(|bad| bad.answer()), Err(None));
    assert_eq!(with(2, 0x29).map_err(|bad| bad.code), Err(Code::NotDone));
    // Two questions, an answer, an authority, another class.
    for (at, byte) in [(5, 2), (7, 1), (9, 1), (11, 1), (fine.len() - 1, 3)] {
        assert_eq!(with(at, byte).map_err(|bad| bad.code), Err(Code::Malformed));
    }
    // A pointer, and a label that is longer than the message.
    for byte in [0xc0, 60, 64, 0x80] {
        assert_eq!(with(12, byte).map_err(|bad| bad.code), Err(Code::Malformed));
    }
    for end in 0..fine.len() {
        assert!(Question::read(&fine[..end]).is_err(), "{end}");
    }
    let mut more = fine.clone();
    more.push(0);
    assert!(Question::read(&more).is_err());
}

#[test]
fn labels_that_text_does_not_show_apart_are_no_name() {
    for label in ["a.b", "a\0b", "a b", "\u{e9}"] {
        let mut message = question("x", A);
        message.splice(12..13, [label.len() as u8]);
        message.splice(13..14, label.bytes());
        let asked = Question::read(&message).expect("it is one");
        assert_eq!(asked.name, None, "{label:?}");
        assert_eq!(asked.shown(), label.as_bytes());
    }
}

#[test]
fn an_answer_follows_other_names_and_takes_nothing_else() {
    let mut message = question("a.b", A);
    message[2] = 0x81;
    message[7] = 3;
    let mut record = |owner: &[u8], kind: u16, data: &[u8]| {
        message.extend_from_slice(owner);
        message.extend_from_slice(&kind.to_be_bytes());
        message.extend_from_slice(&[0, 1, 0, 0, 0, 9]);
        message.extend_from_slice(&(data.len() as u16).to_be_bytes());
        message.extend_from_slice(data);
    };
    record(&[0xc0, 12], CNAME, &raw_of("c.d"));
    record(&raw_of("evil.e"), A, &[6, 6, 6, 6]);
    record(&raw_of("C.d"), A, &[1, 2, 3, 4]);
    assert_eq!(
        read_answer(&message, 7, "a.b", A),
        Some(Answered::Addresses(vec![[1, 2, 3, 4].into()]))
    );
    message[2] = 0x83;
    assert_eq!(read_answer(&message, 7, "a.b", A), Some(Answered::Cut));
}

#[test]
fn pointers_lead_backwards_only() {
    let mut message = question("a.b", A);
    message[2] = 0x81;
    message[7] = 1;
    let at = message.len() as u8;
    message.extend_from_slice(&[0xc0, at, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 1, 2, 3, 4]);
    assert_eq!(read_answer(&message, 7, "a.b", A), None);
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(asked) = Question::read(&bytes) {
            let _ = (asked.shown(), asked.answer(None), asked.refusal(Code::Failed, "x"));
        }
        let _ = read_answer(&bytes, 7, "a.b", A);
        let mut answer = question("a.b", A);
        answer[2] = 0x81;
        answer[7] = 9;
        answer.extend_from_slice(&bytes);
        let _ = read_answer(&answer, 7, "a.b", A);
    }

    #[test]
    fn a_name_is_read_as_it_was_asked(name in "[a-z0-9_-]{1,63}(\\.[a-z0-9_-]{1,20}){0,8}") {
        let asked = Question::read(&question(&name, AAAA)).expect("it is one");
        prop_assert_eq!(asked.name.as_deref(), Some(name.as_str()));
        prop_assert_eq!(asked.kind, AAAA);
    }
}
