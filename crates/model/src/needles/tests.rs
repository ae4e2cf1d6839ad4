use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

const SECRET: &str = "ghp_Hunter2Hunter3Hunter4Hunter5Hunt";
const FAKE: &str = "ghp_0123456789abcdef0123456789abcdef";

fn needles(secret: &str) -> Needles {
    Needles::new([(secret.as_bytes(), FAKE.as_bytes())].into_iter()).expect("a needle")
}

#[test]
fn a_detector_finds_what_is_cut_anywhere() {
    let needles = needles(SECRET);
    let coded = STANDARD.encode(SECRET);
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
