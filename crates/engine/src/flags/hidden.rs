//! Text that a person does not see, or sees in another order, in added lines ("trojan source").

use ringfence_model::flag::{FlagKind, Severity};
use ringfence_model::text::{is_invisible, reorders};

use super::scan::{Line, Sign};
use super::{Found, line_of};

pub(super) fn line(line: &Line<'_>, found: &mut Found) {
    if line.sign != Sign::Added || line.text.is_ascii() {
        return;
    }
    let Ok(text) = std::str::from_utf8(line.text) else {
        return;
    };
    let mut before = None;
    let mut characters = text.chars().enumerate().peekable();
    while let Some((at, c)) = characters.next() {
        let after = characters.peek().map(|(_, next)| *next);
        let mark = c == '\u{feff}' && at == 0 && line.number == 1;
        if reorders(c) {
            found.add(
                FlagKind::HiddenText,
                Severity::Serious,
                "an added line holds characters that show its text in another order",
                line_of(line, Some(format!("U+{:04X}", u32::from(c)))),
            );
            return;
        }
        if is_invisible(c) && !mark && !belongs(c, before, after) {
            found.add(
                FlagKind::HiddenText,
                Severity::Warning,
                "an added line holds characters that cannot be seen",
                line_of(line, Some(format!("U+{:04X}", u32::from(c)))),
            );
            return;
        }
        before = Some(c);
    }
}

/// How a sign is drawn belongs to emoji and to signs that were there before them; joiners belong in
/// emoji and in some scripts, direction marks beside text that runs to the left,
/// tags after the black flag.
fn belongs(c: char, before: Option<char>, after: Option<char>) -> bool {
    let other = |c: Option<char>| c.is_some_and(|c| !c.is_ascii() && !is_invisible(c));
    let around = [before, after];
    match c {
        '\u{200c}' | '\u{200d}' => other(before) || other(after),
        '\u{fe0e}' | '\u{fe0f}' => {
            other(before) || before.is_some_and(|c| c.is_ascii_digit() || matches!(c, '#' | '*'))
        }
        '\u{200e}' | '\u{200f}' => around
            .iter()
            .flatten()
            .any(|c| matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefe}')),
        '\u{e0020}'..='\u{e007f}' => before
            .is_some_and(|c| c == '\u{1f3f4}' || matches!(c, '\u{e0020}'..='\u{e007e}')),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;

    #[test]
    fn what_cannot_be_seen_is_told() {
        for (line, expected) in [
            (
                "+if x: \u{202e} } \u{2066}// check",
                Some("serious hidden_text"),
            ),
            ("+is\u{200b}admin = 1", Some("warning hidden_text")),
            ("+is\u{200d}admin = 1", Some("warning hidden_text")),
            ("+x = \"\u{e0041}\"", Some("warning hidden_text")),
            ("+let \u{3164} = 1", Some("warning hidden_text")),
            ("+a\u{e0101}\u{e0102}b", Some("warning hidden_text")),
            ("+\u{2764}\u{fe01}", Some("warning hidden_text")),
            ("+\u{2764}\u{fe0f}\u{fe0f}", Some("warning hidden_text")),
            ("+\u{2764}\u{fe0f} 1\u{fe0f}\u{20e3}", None),
            ("+a\u{34f}b \u{fffc}", Some("warning hidden_text")),
            ("-if x: \u{202e}", None),
            ("+plain", None),
            ("+Grüße, 日本語", None),
            ("+👩\u{200d}👧 and 🏳\u{fe0f}\u{200d}🌈", None),
            ("+نمی\u{200c}خواهم", None),
            ("+שלום\u{200e}", None),
            ("+\u{feff}# first line of the file", None),
        ] {
            let kinds = World::of(&[("a", "modified")]).kinds(&[line]);
            assert_eq!(kinds, expected.into_iter().collect::<Vec<_>>(), "{line:?}");
        }
        let kinds = World::of(&[("a", "modified")]).kinds(&["+one", "+\u{feff}two"]);
        assert_eq!(kinds, ["warning hidden_text"]);
    }
}
