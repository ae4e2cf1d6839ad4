//! Checks that did something and do nothing any more: `test` of a `Makefile` or a `package.json`.

use std::collections::BTreeMap;

use ringfence_model::changes::ChangeKind;
use ringfence_model::flag::{FlagKind, Severity};
use serde_json::Value;

use super::gather::Sides;
use super::{Facts, Found, path_with, paths};

/// What people call their checks.
const CHECKS: &[&str] = &[
    "test", "tests", "check", "lint", "ci", "verify", "unit", "e2e", "pretest", "posttest",
];

/// Whether each check of a file does anything.
type Works = BTreeMap<&'static str, bool>;

/// True for a file that says what its checks do.
pub(super) fn is_recipes(path: &[u8]) -> bool {
    is_makefile(path) || is_package(path)
}

fn is_makefile(path: &[u8]) -> bool {
    ["makefile", "gnumakefile"].contains(&paths::name(path).as_str())
}

fn is_package(path: &[u8]) -> bool {
    paths::name(path) == "package.json"
}

pub(super) fn look(facts: &Facts<'_>, found: &mut Found) {
    for change in facts.changes {
        let path = &change.path;
        if change.kind == ChangeKind::Deleted {
            continue;
        }
        let read = match path.as_bytes() {
            bytes if is_makefile(bytes) => of_makefile,
            bytes if is_package(bytes) => of_package,
            _ => continue,
        };
        let Some(Sides {
            old: Some(old),
            new: Some(new),
        }) = facts.gathered.sides.get(path)
        else {
            continue;
        };
        let (old, new) = (read(old), read(new));
        for (check, _) in old.iter().filter(|(_, works)| **works) {
            if new.get(check) != Some(&true) {
                found.add(
                    FlagKind::ChecksWeakened,
                    Severity::Warning,
                    "a check that did something does nothing any more",
                    path_with(path, *check),
                );
            }
        }
    }
}

fn known(name: &str) -> Option<&'static str> {
    CHECKS.iter().copied().find(|check| *check == name)
}

fn of_package(text: &[u8]) -> Works {
    let package: Value = serde_json::from_slice(text).unwrap_or_default();
    let scripts = package["scripts"].as_object().into_iter().flatten();
    scripts
        .filter_map(|(name, script)| Some((known(name)?, works(script.as_str()?))))
        .collect()
}

/// Rules as `make` reads them, as far as their names and lines go. What a rule needs is work, too.
fn of_makefile(text: &[u8]) -> Works {
    let text = String::from_utf8_lossy(text);
    let mut all = Works::new();
    let mut current: Vec<&'static str> = Vec::new();
    let mut note = |checks: &[&'static str], works: bool| {
        for check in checks {
            *all.entry(check).or_default() |= works;
        }
    };
    for line in text.lines() {
        if let Some(recipe) = line.strip_prefix('\t') {
            note(&current, works(recipe));
            continue;
        }
        let Some((targets, rest)) = line.split_once(':') else {
            continue;
        };
        if line.starts_with([' ', '#']) || rest.starts_with('=') {
            continue;
        }
        current = targets.split_whitespace().filter_map(known).collect();
        let (needs, recipe) = rest.split_once(';').unwrap_or((rest, ""));
        let needs = needs.split('#').next().unwrap_or_default();
        let needs = needs.trim_start_matches(':').trim();
        note(&current, !needs.is_empty() || works(recipe));
    }
    all
}

/// Whether a line of shell can fail for what it looks at.
fn works(line: &str) -> bool {
    let line = line.trim().trim_start_matches(['@', '-', '+']).trim();
    let nothing = ["", "true", ":", "exit", "exit 0", "/bin/true"].contains(&line);
    let speaks = ["echo", "printf"].iter().any(|say| {
        line.strip_prefix(say)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    });
    let alone = !line.contains(['&', ';', '|', '`', '$']);
    !(nothing || line.starts_with('#') || (speaks && alone))
}

#[cfg(test)]
mod tests {
    use super::super::tests::World;
    use super::*;

    fn weakened(path: &str, old: &str, new: &str) -> bool {
        let mut world = World::of(&[(path, "modified")]);
        let sides = Sides {
            old: Some(old.into()),
            new: Some(new.into()),
        };
        world.gathered.sides.insert(path.into(), sides);
        let kinds = world.kinds(&[]);
        kinds.contains(&"warning checks_weakened".to_owned())
    }

    #[test]
    fn an_emptied_recipe_is_told() {
        let old = ".PHONY: test\nall: test\n\ntest: build\n\tpytest -q\n\nbuild:\n\tcc a.c\n";
        for (new, told) in [
            ("all: test\ntest:\n\ttrue\n", true),
            ("all: test\ntest:\n", true),
            ("test:\n\t@echo all tests pass\n", true),
            ("test: ; @exit 0\n", true),
            ("test :=\n", true),
            ("all:\n\tcc a.c\n", true),
            ("# nothing\ntest:\n\t# pytest -q\n\t@:\n", true),
            ("test:\n\tpytest -q -x\n", false),
            ("test: unit\n", false),
            ("check test:\n\t@echo testing\n\tcargo test\n", false),
            ("test: ; cargo test\n", false),
        ] {
            assert_eq!(weakened("Makefile", old, new), told, "{new}");
        }
        // It did nothing before, either.
        assert!(!weakened("Makefile", "test:\n\ttrue\n", "test:\n"));
        assert!(!weakened("docs/test.mk.txt", old, ""));
    }

    #[test]
    fn an_emptied_script_is_told() {
        let package = |test: &str| format!(r#"{{"scripts": {{"test": {test}, "x": "y"}}}}"#);
        let old = package(r#""jest --ci""#);
        for (new, told) in [
            (package(r#""""#), true),
            (package(r#""true""#), true),
            (package(r#""exit 0""#), true),
            (package(r#""echo fine""#), true),
            ("{}".to_owned(), true),
            (package(r#""vitest run""#), false),
            (package(r#""echo first && jest""#), false),
            (old.clone(), false),
        ] {
            assert_eq!(weakened("web/package.json", &old, &new), told, "{new}");
        }
    }
}
