//! `go test`, as text and as `-json`.

use std::borrow::Cow;

use serde::Deserialize;

use super::{Tally, Text, Unit};

/// `--- FAIL: TestX (0.00s)`; without `-v` only what failed has a line, and packages are counted.
pub(super) fn plain(text: &Text<'_>) -> Option<Tally> {
    let mut tests = Tally::default();
    let mut packages = Tally {
        unit: Unit::Packages,
        ..Tally::default()
    };
    for (at, line) in text.lines.iter().enumerate() {
        let inner = line.trim_start();
        if let Some(rest) = inner.strip_prefix("--- ") {
            let Some((word, name)) = rest.split_once(": ") else {
                continue;
            };
            let Some((name, _)) = name.rsplit_once(" (") else {
                continue;
            };
            match word {
                "PASS" => tests.add(at, 1, 0, 0),
                "SKIP" => tests.add(at, 0, 0, 1),
                "FAIL" => {
                    tests.add(at, 0, 1, 0);
                    tests.name(name);
                    packages.name(name);
                }
                _ => {}
            }
            continue;
        }
        let mut fields = line.split('\t').map(str::trim);
        match (fields.next(), fields.next(), fields.next()) {
            (Some("ok"), Some(_), Some(_)) => packages.add(at, 1, 0, 0),
            (Some("FAIL"), Some(_), _) => packages.add(at, 0, 1, 0),
            (Some("?"), Some(_), Some(_)) => packages.add(at, 0, 0, 1),
            _ => {}
        }
    }
    // Without a package that ends, it is something else that prints so.
    if packages.summaries == 0 {
        return None;
    }
    let ended = packages.summaries;
    if tests.passed > 0 {
        Some(Tally {
            summaries: ended,
            last: packages.last,
            ..tests
        })
    } else {
        packages.found()
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, rename = "Action")]
    action: Cow<'a, str>,
    #[serde(borrow, rename = "Package")]
    package: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "Test")]
    test: Option<Cow<'a, str>>,
}

/// One object a line: `{"Action":"pass","Package":"p","Test":"TestX"}`.
pub(super) fn json(text: &Text<'_>) -> Option<Tally> {
    let mut tally = Tally::default();
    let mut ended = 0;
    for (at, line) in text.lines.iter().enumerate() {
        if !line.starts_with("{\"") {
            continue;
        }
        let Ok(line) = serde_json::from_str::<Line<'_>>(line) else {
            continue;
        };
        let Some(package) = line.package else {
            continue;
        };
        let counts = match &*line.action {
            "pass" => (1, 0, 0),
            "fail" => (0, 1, 0),
            "skip" => (0, 0, 1),
            _ => continue,
        };
        let Some(test) = line.test else {
            ended += 1;
            tally.last = at;
            continue;
        };
        tally.add(at, counts.0, counts.1, counts.2);
        if counts.1 > 0 {
            tally.name(&format!("{package} {test}"));
        }
    }
    tally.summaries = ended;
    tally.found()
}
