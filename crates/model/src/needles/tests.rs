//! Needles in texts and streams: what is found, what stands there instead, and what a reader can measure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use proptest::prelude::*;

use super::*;

const SECRET: &str = "ghp_Hunter2Hunter3Hunter4Hunter5Hunt";
const FAKE: &str = "ghp_0123456789abcdef0123456789abcdef";

fn needles(secret: &str) -> Needles {
    Needles::new([(secret.as_bytes(), FAKE.as_bytes())].into_iter()).expect("a needle")
}

/// What a stream gives for each piece, and at the end. `pauses`: after which pieces the source pauses.
fn pieces(needles: &Needles, text: &[u8], cuts: &[usize], pauses: &[bool]) -> Vec<Bytes> {
    let mut stream = Stream::new(needles);
    let mut out = Vec::new();
    let mut rest = text;
    for (number, cut) in cuts.iter().chain(&[text.len()]).enumerate() {
        let (piece, behind) = rest.split_at((*cut).min(rest.len()));
        out.push(stream.piece(piece));
        if pauses.get(number).copied().unwrap_or(false) {
            out.push(stream.pause());
        }
        rest = behind;
    }
    out.push(stream.end());
    out
}

fn lengths(pieces: &[Bytes]) -> Vec<usize> {
    pieces.iter().map(Bytes::len).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// What the reader can measure is the same for a right guess of the beginning as for a wrong one.
    #[test]
    fn sizes_do_not_depend_on_how_much_of_the_secret_came(
        secret in "[!-~]{8,80}",
        other in "[!-~]{8,80}",
        which in any::<prop::sample::Index>(),
        length in any::<prop::sample::Index>(),
        (before, after) in (0_usize..3000, 0_usize..3000),
        cuts in prop::collection::vec(1_usize..900, 0..20),
        pauses in prop::collection::vec(any::<bool>(), 20),
    ) {
        let forms = forms(secret.as_bytes(), b"");
        let form = &which.get(&forms).bytes;
        let length = length.index(form.len());
        let wrong = vec![b'\x01'; length];
        let text = |guess: &[u8]| [&vec![b'\x02'; before][..], guess, &vec![b'\x02'; after]].concat();
        let sizes = |secret: &str, guess: &[u8]| {
            let text = text(guess);
            lengths(&pieces(&needles(secret), &text, &cuts, &pauses))
        };
        let right = sizes(&secret, &form[..length]);
        prop_assert_eq!(&right, &sizes(&secret, &wrong));
        // Nor on which secret of this length it is.
        if other.len() == secret.len() && !other.contains(&*secret) {
            let longest = |secret: &str| needles(secret).window;
            prop_assert_eq!(longest(&other), longest(&secret));
            prop_assert_eq!(right, sizes(&other, &form[..length]));
        }
    }
}

#[test]
fn as_much_is_held_back_as_the_longest_match_may_have() {
    let needles = needles(SECRET);
    let mut stream = Stream::new(&needles);
    let mut passed = 0;
    for came in 1..6 * PIECE {
        passed += stream.piece(b"x").len();
        let decided = came.saturating_sub(needles.window - 1);
        assert_eq!(passed, decided / PIECE * PIECE, "{came}");
    }
    assert!(stream.holds_back());
    assert_eq!(passed + stream.pause().len(), 6 * PIECE - 1);
    assert!(!stream.holds_back());
}

#[test]
fn the_rest_of_a_needle_is_replaced_after_a_pause() {
    let needles = needles(SECRET);
    for cut in 1..SECRET.len() {
        let mut stream = Stream::new(&needles);
        let (begin, rest) = SECRET.split_at(cut);
        stream.piece(b"before ");
        assert!(stream.piece(begin.as_bytes()).is_empty());
        assert_eq!(stream.pause(), format!("before {begin}").as_bytes());
        stream.piece(rest.as_bytes());
        stream.piece(b" after");
        assert_eq!(stream.end(), format!("{} after", &FAKE[cut..]).as_bytes());
        assert_eq!(stream.seen.len(), 1);
    }
}

/// A text broken into lines of so many bytes.
fn broken(text: &str, width: usize, line_end: &str) -> String {
    let lines: Vec<&[u8]> = text.as_bytes().chunks(width).collect();
    let lines = lines.iter().map(|line| String::from_utf8_lossy(line));
    lines.collect::<Vec<_>>().join(line_end)
}

#[test]
fn coded_values_are_found_across_line_breaks() {
    let needles = needles(SECRET);
    let hex: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    let user = STANDARD.encode(format!("user:{SECRET}!"));
    let pem = STANDARD.encode(format!("{}{SECRET}{}", "p".repeat(100), "s".repeat(100)));
    let colons = SECRET.bytes().map(|byte| format!("{byte:02X}"));
    let colons = colons.collect::<Vec<_>>().join(":");
    assert!(needles.find(colons.as_bytes()).is_some());
    for text in [SECRET, &hex, &hex.to_uppercase(), &user, &pem] {
        for width in [1, 2, 4, 7, 16, 30, 60, 64, 76] {
            for line_end in [
                "\n", "\r\n", " ", "\\n", "\\r\\n", "\\\\n", "%0A", "%0d%0a", "%250A", "&#13;\n",
                "&#xA;", "\\u000a", "=\r\n", "\\\n",
            ] {
                if width * 2 < line_end.len() || width >= text.len() {
                    continue;
                }
                let text = broken(text, width, line_end);
                let what = format!("{width} {line_end:?} {text:?}");
                assert!(needles.find(text.as_bytes()).is_some(), "{what}");
                for size in [1, 13, 4096] {
                    let cuts: Vec<usize> = vec![size; text.len() / size];
                    let out = pieces(&needles, text.as_bytes(), &cuts, &[]).concat();
                    assert_eq!(out.len(), text.len(), "{what}");
                    assert!(needles.find(&out).is_none(), "{what}");
                    let out = String::from_utf8_lossy(&out).into_owned();
                    let breaks = |text: &str| text.matches(line_end).count();
                    assert_eq!(breaks(&out), breaks(&text), "{what}");
                }
            }
        }
    }
    // Words in a text are not taken for a value.
    let prose = super::Needles::new([(&b"hunter-of-words"[..], &b""[..])].into_iter());
    let prose = prose.expect("a needle");
    assert!(prose.find(b"a hunter of words").is_none());
}

#[test]
fn large_texts_are_searched_across_blocks() {
    let needles = needles(SECRET);
    let coded = broken(&STANDARD.encode(SECRET), 10, "\n");
    for needle in [SECRET, &coded] {
        for back in [0, 1, 7, needle.len()] {
            let mut text = vec![b'x'; BLOCK - back];
            text.extend_from_slice(needle.as_bytes());
            text.extend(vec![b'y'; BLOCK]);
            assert!(needles.find(&text).is_some(), "{needle} {back}");
            let mut seen = Vec::new();
            let out = needles.replace(&text, &mut seen).expect("replaced");
            assert_eq!((out.len(), seen.len()), (text.len(), 1));
            assert!(needles.find(&out).is_none());
        }
    }
    assert!(
        needles
            .replace(&vec![b'x'; 3 * BLOCK], &mut Vec::new())
            .is_none()
    );
}

#[test]
fn the_longer_of_two_needles_is_replaced() {
    let pairs = [
        (&b"abcdef123456"[..], &b"short"[..]),
        (b"abcdef123456789", b"long"),
    ];
    let needles = Needles::new(pairs.into_iter()).expect("needles");
    let out = needles.replace(b"<abcdef\n123456789>", &mut Vec::new());
    assert_eq!(out.as_deref(), Some(&b"<long\n>"[..]));
    let out = needles.replace(b"<abcdef123456789>", &mut Vec::new());
    assert_eq!(out.as_deref(), Some(&b"<long>"[..]));
}

#[test]
fn a_detector_finds_what_is_cut_anywhere() {
    let needles = needles(SECRET);
    let coded = broken(&STANDARD.encode(SECRET), 16, "\r\n");
    for text in [SECRET, &coded] {
        for cut in 1..text.len() {
            let mut detector = Detector::new(&needles);
            let (begin, rest) = text.as_bytes().split_at(cut);
            assert!(detector.piece(begin).is_empty(), "{cut}");
            assert_eq!(detector.piece(rest).len(), 1, "{cut}");
        }
    }
}

#[test]
fn forms_that_share_a_long_beginning_are_told_apart() {
    let header = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCIsImtpZCI6IjEifQ.".repeat(2);
    let [one, other] =
        ["one-signature", "other-signature-that-is-longer"].map(|end| format!("{header}{end}"));
    let longer = format!("{one}-and-more");
    let values = [&header[..80], &one, &other, &longer];
    let pairs = values.map(|value| (value.as_bytes(), &b""[..]));
    let needles = Needles::new(pairs.into_iter()).expect("needles");
    for (number, value) in values.iter().enumerate() {
        let found = needles.find(format!("<{value}>").as_bytes());
        assert_eq!(found.map(|found| found.secret), Some(number));
    }
    // What only begins like the others contains the first.
    let text = format!("<{header}on>");
    let out = needles.replace(text.as_bytes(), &mut Vec::new());
    assert_eq!(
        out.expect("replaced"),
        format!("<{}on>", &header[80..]).as_bytes()
    );
    let only = Needles::new([(one.as_bytes(), &b""[..])].into_iter()).expect("a needle");
    assert!(
        only.find(format!("{header}{header}on").as_bytes())
            .is_none()
    );
    assert!(only.find(format!("{header}{one}").as_bytes()).is_some());
}
