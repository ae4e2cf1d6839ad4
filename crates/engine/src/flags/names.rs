//! Names that another machine takes for one and the same, that a person takes for another, or that
//! some machine cannot have.

use std::collections::{BTreeMap, BTreeSet};

use ringfence_model::ByteText;
use ringfence_model::changes::ChangeKind;
use ringfence_model::flag::{FlagKind, Severity};
use ringfence_model::text::{hides, is_invisible};
use unicode_normalization::UnicodeNormalization as _;
use unicode_security::MixedScript as _;

use super::gather::above;
use super::{Facts, Found, path, path_with};

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    if facts.gathered.cut {
        found.add(
            FlagKind::NotScanned,
            Severity::Warning,
            "there are so many new names, links or manifests that not all were compared",
            None,
        );
    }
    // Each new component once, with the first path that it is part of.
    let mut seen: BTreeSet<&[u8]> = BTreeSet::new();
    let mut beside = Beside::new(facts);
    for change in facts.changes {
        if !matches!(change.kind, ChangeKind::Added | ChangeKind::Renamed { .. }) {
            continue;
        }
        let whole = change.path.as_bytes();
        let mut end = whole.len();
        for directory in above(whole) {
            // Above one that was looked at, all were.
            if !seen.insert(&whole[..end]) {
                break;
            }
            let start = if directory.is_empty() {
                0
            } else {
                directory.len() + 1
            };
            let component = start..end;
            end = directory.len();
            let name = &whole[component];
            if beside.has_already(directory, name) {
                continue;
            }
            beside.meet(directory, name, &change.path, found);
            odd(name, &change.path, found);
            looks_like_another(name, &change.path, found);
        }
    }
}

/// What lies in each directory, by what other machines and people make of its name.
struct Beside<'a> {
    facts: &'a Facts<'a>,
    folded: BTreeMap<&'a [u8], Names>,
}

#[derive(Default)]
struct Names {
    exact: BTreeSet<Vec<u8>>,
    folded: BTreeMap<String, Vec<u8>>,
    shapes: BTreeMap<String, Vec<u8>>,
}

impl<'a> Beside<'a> {
    fn new(facts: &'a Facts<'a>) -> Self {
        Self {
            facts,
            folded: BTreeMap::new(),
        }
    }

    fn names(&mut self, directory: &'a [u8]) -> &mut Names {
        self.folded.entry(directory).or_insert_with(|| {
            let mut names = Names::default();
            let listed = self.facts.gathered.beside.get(directory);
            for name in listed.into_iter().flatten() {
                names.put(name);
            }
            names
        })
    }

    /// A directory that was there before is not new.
    fn has_already(&mut self, directory: &'a [u8], name: &[u8]) -> bool {
        self.names(directory).exact.contains(name)
    }

    fn meet(&mut self, directory: &'a [u8], name: &[u8], whole: &ByteText, found: &mut Found) {
        let names = self.names(directory);
        let text = String::from_utf8_lossy(name);
        if let Some(other) = names.folded.get(&fold(&text)) {
            found.add(
                FlagKind::CollidingName,
                Severity::Warning,
                "a name that macOS and Windows take for that of another file beside it",
                path_with(
                    whole,
                    format!("beside {}", ByteText::from(other.as_slice())),
                ),
            );
        } else if let Some(other) = names.shapes.get(&shape(&text))
            // `l1.c` and `ll.c` are different enough.
            && !(text.is_ascii() && other.is_ascii())
        {
            found.add(
                FlagKind::ConfusableName,
                Severity::Serious,
                "a name that looks like that of another file beside it",
                path_with(
                    whole,
                    format!("beside {}", ByteText::from(other.as_slice())),
                ),
            );
        }
        names.put(name);
    }
}

impl Names {
    fn put(&mut self, name: &[u8]) {
        let text = String::from_utf8_lossy(name);
        self.exact.insert(name.to_vec());
        self.folded
            .entry(fold(&text))
            .or_insert_with(|| name.to_vec());
        self.shapes
            .entry(shape(&text))
            .or_insert_with(|| name.to_vec());
    }
}

/// As a file system sees it that tells neither case nor forms of a letter apart.
fn fold(name: &str) -> String {
    let visible: String = name.chars().filter(|c| !is_invisible(*c)).collect();
    let lower: String = visible.nfkc().flat_map(char::to_lowercase).collect();
    lower.replace('ß', "ss").nfkc().collect()
}

/// As a person sees it.
fn shape(name: &str) -> String {
    let visible: String = name.chars().filter(|c| !is_invisible(*c)).collect();
    unicode_security::skeleton(&visible).collect()
}

/// A name in which letters of one script stand for those of another, or something cannot be seen.
fn looks_like_another(name: &[u8], whole: &ByteText, found: &mut Found) {
    let Ok(text) = std::str::from_utf8(name) else {
        return;
    };
    if text.is_ascii() {
        return;
    }
    if let Some(c) = text.chars().find(|c| hides(*c)) {
        let joiner = matches!(c, '\u{200c}' | '\u{200d}');
        let other = |c: char| !c.is_ascii() && !is_invisible(c);
        if !(joiner && text.chars().any(other)) {
            found.add(
                FlagKind::ConfusableName,
                Severity::Serious,
                "a name with characters that cannot be seen or that show it in another order",
                path_with(whole, format!("U+{:04X}", u32::from(c))),
            );
        }
        return;
    }
    // `Δt.py` has two scripts and looks like nothing else.
    let words = text.split(|c: char| !c.is_alphabetic());
    if words
        .into_iter()
        .any(|word| !word.is_single_script() && shape(word).is_ascii())
    {
        found.add(
            FlagKind::ConfusableName,
            Severity::Serious,
            "a name in which letters of another script look like Latin ones",
            path(whole),
        );
    }
}

/// A name that makes trouble on some machine.
fn odd(name: &[u8], whole: &ByteText, found: &mut Found) {
    let text = String::from_utf8_lossy(name);
    let (severity, what) = if name.iter().any(u8::is_ascii_control) {
        (Severity::Warning, "control characters")
    } else if std::str::from_utf8(name).is_err() {
        (Severity::Warning, "bytes that are no text")
    } else if name.contains(&b'\\') {
        (
            Severity::Warning,
            "a backslash, which separates directories elsewhere",
        )
    } else if name.starts_with(b"-") {
        (
            Severity::Info,
            "a dash first, which programs take for an option",
        )
    } else if is_reserved(&text) {
        (Severity::Info, "a device of Windows")
    } else if text.contains(['<', '>', ':', '"', '|', '?', '*']) || text.ends_with(['.', ' ']) {
        (Severity::Info, "what Windows cannot have in a name")
    } else {
        return;
    };
    found.add(
        FlagKind::OddName,
        severity,
        "a name that makes trouble on some machines",
        path_with(whole, what),
    );
}

fn is_reserved(name: &str) -> bool {
    let stem = name
        .split('.')
        .next()
        .unwrap_or(name)
        .trim_end()
        .to_ascii_uppercase();
    ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"].contains(&stem.as_str())
        || ["COM", "LPT"].iter().any(|device| {
            let number = stem.strip_prefix(device);
            number.is_some_and(|n| n.len() == 1 && n.as_bytes()[0].is_ascii_digit() && n != "0")
        })
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;

    fn kinds(base: &[(&str, &[&str])], changes: &[(&str, &str)]) -> Vec<String> {
        let mut world = World::of(changes);
        for (directory, names) in base {
            let names = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            world
                .gathered
                .beside
                .insert(directory.as_bytes().to_vec(), names);
        }
        world.kinds(&[])
    }

    #[test]
    fn names_that_collide_are_told() {
        let top: &[(&str, &[&str])] = &[("", &["README.md", "src", "caf\u{e9}.txt"])];
        for (changes, expected) in [
            (vec![("readme.md", "added")], Some("warning colliding_name")),
            (vec![("Src/a.rs", "added")], Some("warning colliding_name")),
            (
                vec![("cafe\u{301}.txt", "added")],
                Some("warning colliding_name"),
            ),
            (
                vec![("a.txt", "added"), ("A.txt", "added")],
                Some("warning colliding_name"),
            ),
            (vec![("ｓｒｃ", "added")], Some("warning colliding_name")),
            (vec![("src/a.rs", "added"), ("src/b.rs", "added")], None),
            (vec![("README.md", "modified")], None),
            (vec![("readme.txt", "added")], None),
            (vec![("docs/README.md", "added")], None),
        ] {
            let found = kinds(top, &changes);
            assert_eq!(
                found,
                expected.into_iter().collect::<Vec<_>>(),
                "{changes:?}"
            );
        }
    }

    #[test]
    fn names_that_look_alike_are_told() {
        let top: &[(&str, &[&str])] = &[("", &["paypal.py", "l1.c", "сор.txt"])];
        for (name, expected) in [
            ("p\u{430}ypal.py", Some("serious confusable_name")),
            ("\u{440}aypal.py", Some("serious confusable_name")),
            ("safe\u{202e}gpj.sh", Some("serious confusable_name")),
            ("a\u{200b}b.txt", Some("serious confusable_name")),
            ("ll.c", None),
            ("привет.txt", None),
            ("日本語.txt", None),
            ("Δt.py", None),
            ("Grüße.txt", None),
            ("naïve.md", None),
        ] {
            let found = kinds(top, &[(name, "added")]);
            let expected: Vec<&str> = expected.into_iter().collect();
            assert!(
                found == expected
                    || (found.len() == 2 && found[0] == found[1] && found[0] == *expected[0]),
                "{name}: {found:?}"
            );
        }
    }

    #[test]
    fn names_that_make_trouble_are_told() {
        for (name, expected) in [
            ("a\nb", Some("warning odd_name")),
            ("..\\..\\x", Some("warning odd_name")),
            ("CON", Some("info odd_name")),
            ("aux.txt", Some("info odd_name")),
            ("com1.log", Some("info odd_name")),
            ("a:b", Some("info odd_name")),
            ("x.", Some("info odd_name")),
            ("x ", Some("info odd_name")),
            ("-rf", Some("info odd_name")),
            ("console.txt", None),
            ("com10", None),
            ("a b.txt", None),
            ("<img src=x onerror=alert(1)>.txt", Some("info odd_name")),
        ] {
            let found = kinds(&[], &[(name, "added")]);
            assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{name:?}");
        }
        assert_eq!(kinds(&[], &[("CON", "modified")]), [""; 0]);
    }
}
