//! A bundle that was changed in each possible place, and one from an earlier version that is still
//! read. Everything is done on the golden bundle in `docs/formats`, in process.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use ringfence_engine::verify::{State, Verdict};
use ringfence_model::bundle::{
    ATTESTATION, FILES, JOURNAL, MANIFEST, PATCH, RESULT, SUMMARY, most_bytes, sha256_hex,
};
use ringfence_model::journal::Event;
use ringfence_model::outcome::RunStatus;

use crate::shared::golden;
use golden::{Bundle, another_key, failures, golden_base, golden_key, look};

#[test]
fn a_bundle_of_the_first_version_is_verified() {
    let base = golden_base();
    let key = golden_key().public();
    let report = Bundle::golden().report(&key, Some(base.path()));
    assert_eq!(report.verdict, Verdict::Ok, "{report:#?}");
    for check in &report.checks {
        assert_eq!(check.state, State::Ok, "{check:?}");
    }
    // A bare repository does as well.
    let bare = tempfile::tempdir().unwrap();
    let cloned = Command::new("git")
        .args(["clone", "-q", "--bare"])
        .args([base.path(), bare.path()])
        .status();
    assert!(cloned.unwrap().success());
    let report = Bundle::golden().report(&key, Some(bare.path()));
    assert_eq!(
        report.checks.last().unwrap().state,
        State::Ok,
        "{report:#?}"
    );
    // Another repository has no such commit. Who names it wants to know.
    let other = tempfile::tempdir().unwrap();
    let report = Bundle::golden().report(&key, Some(other.path()));
    assert_eq!(report.verdict, Verdict::Broken);
    assert_eq!(report.checks.last().unwrap().state, State::Failed);
}

#[test]
fn r26_any_flipped_byte_is_found() {
    let key = golden_key().public();
    let golden = Bundle::golden();
    let directory = golden.write();
    for name in FILES {
        let length = golden.0[name].len();
        // BOUND: places in each file, spread over all of it, with each bit in turn.
        let step = length.div_ceil(120).max(1);
        for (turn, at) in (0..length).step_by(step).enumerate() {
            for changed in [golden.0[name][at] ^ (1 << (turn % 8)), b' ', b'\t', b'0'] {
                let mut bytes = golden.0[name].clone();
                bytes[at] = changed;
                if bytes != golden.0[name] {
                    fs::write(directory.path().join(name), bytes).unwrap();
                    let report = look(directory.path(), &key, None);
                    assert_eq!(report.verdict, Verdict::Broken, "{name}, byte {at}");
                }
            }
        }
        fs::write(directory.path().join(name), &golden.0[name]).unwrap();
    }
    assert_eq!(look(directory.path(), &key, None).verdict, Verdict::Ok);
}

#[test]
fn cut_grown_and_mixed_files_are_found() {
    let key = golden_key().public();
    let golden = Bundle::golden();
    for name in FILES {
        let text = &golden.0[name];
        let lines: Vec<&[u8]> = text.split_inclusive(|&b| b == b'\n').collect();
        let mut changed: Vec<Vec<u8>> = vec![
            Vec::new(),
            text[..text.len() / 2].to_vec(),
            text[..text.len() - 1].to_vec(),
            [text, &b"\n"[..]].concat(),
            [text, &b"{}"[..]].concat(),
            [&b"\xef\xbb\xbf"[..], text].concat(),
            [text, text].map(|text| &text[..]).concat(),
        ];
        // BOUND: some of the lines, the first and last among them.
        let some = |at: &usize| at.is_multiple_of(5) || at + 1 == lines.len();
        for at in (0..lines.len()).filter(some) {
            let without = [&lines[..at], &lines[at + 1..]].concat();
            let twice = [&lines[..=at], &lines[at..]].concat();
            changed.extend([without.concat(), twice.concat()]);
            if at > 0 {
                let mut swapped = lines.clone();
                swapped.swap(at - 1, at);
                changed.push(swapped.concat());
            }
        }
        for bytes in changed.into_iter().filter(|bytes| bytes != text) {
            let mut bundle = golden.clone();
            bundle.0.insert(name, bytes);
            assert_eq!(bundle.verdict(&key), Verdict::Broken, "{name}");
        }
    }
}

#[test]
fn r5_only_the_six_files_are_a_bundle() {
    let key = golden_key().public();
    let golden = Bundle::golden();
    let says = |what: &str, change: &dyn Fn(&std::path::Path)| {
        let directory = golden.write();
        change(directory.path());
        let report = look(directory.path(), &key, None);
        assert_eq!(report.verdict, Verdict::Broken, "{what}");
        assert_eq!(report.checks[0].state, State::Failed, "{what}: {report:#?}");
    };
    for name in ["more", ".hidden", "MANIFEST.JSON", "audit.jsonl.bak"] {
        says(name, &|d| fs::write(d.join(name), "").unwrap());
    }
    says("a directory", &|d| fs::create_dir(d.join("sub")).unwrap());
    for name in FILES {
        says("missing", &|d| fs::remove_file(d.join(name)).unwrap());
        says("a link to the same", &|d| {
            let away = d.with_extension("away");
            fs::rename(d.join(name), &away).unwrap();
            symlink(&away, d.join(name)).unwrap();
        });
        says("a FIFO", &|d| {
            fs::remove_file(d.join(name)).unwrap();
            let made = Command::new("mkfifo").arg(d.join(name)).status();
            assert!(made.unwrap().success());
        });
        says("a directory in its place", &|d| {
            fs::remove_file(d.join(name)).unwrap();
            fs::create_dir(d.join(name)).unwrap();
        });
        says("a socket", &|d| {
            fs::remove_file(d.join(name)).unwrap();
            std::os::unix::net::UnixListener::bind(d.join(name)).unwrap();
        });
    }
    // The smaller ones; the bound of the others is as easily met and takes long to read.
    for name in [MANIFEST, ATTESTATION, SUMMARY] {
        says("too large", &|d| {
            let file = fs::OpenOptions::new().write(true).open(d.join(name));
            file.unwrap().set_len(most_bytes(name) + 1).unwrap();
        });
    }
}

/// Another bundle of the same key, whole.
fn sibling() -> Bundle {
    let mut bundle = Bundle::golden();
    bundle.edit_result(|result| result["run"] = "0123456789ab".into());
    bundle.edit_journal(|event| {
        if let Event::Task { run, .. } = event {
            *run = "0123456789ab".to_owned();
        }
    });
    let mut manifest = bundle.manifest();
    manifest.run = "0123456789ab".to_owned();
    bundle.0.insert(MANIFEST, golden::pretty(&manifest));
    bundle.0.insert(SUMMARY, b"# Run 0123456789ab\n".to_vec());
    bundle.reseal(&golden_key());
    bundle
}

#[test]
fn files_of_another_bundle_do_not_fit() {
    let key = golden_key().public();
    let (one, other) = (Bundle::golden(), sibling());
    assert_eq!(failures(&other.report(&key, None)), [""; 0]);
    // Their patches are the same.
    for name in FILES.into_iter().filter(|name| *name != PATCH) {
        let mut mixed = one.clone();
        mixed.0.insert(name, other.0[name].clone());
        assert_eq!(mixed.verdict(&key), Verdict::Broken, "{name}");
    }
    let mut mixed = one.clone();
    for name in [MANIFEST, ATTESTATION] {
        mixed.0.insert(name, other.0[name].clone());
    }
    assert_eq!(mixed.verdict(&key), Verdict::Broken);
}

#[test]
fn a_fixed_hash_needs_a_signature_and_that_needs_a_trusted_key() {
    let (key, other) = (golden_key(), another_key());
    let mut bundle = Bundle::golden();
    // The patch, with the manifest made to fit.
    let signed = bundle.0[ATTESTATION].clone();
    let patch = bundle.text(PATCH).replace("line seven", "line eight");
    bundle.0.insert(PATCH, patch.into_bytes());
    bundle.reseal(&other);
    bundle.0.insert(ATTESTATION, signed);
    assert_eq!(bundle.verdict(&key.public()), Verdict::Broken);
    // Signed by somebody else.
    let mut bundle = Bundle::golden();
    bundle.resign(&other);
    assert_eq!(bundle.verdict(&key.public()), Verdict::Untrusted);
    assert_eq!(bundle.verdict(&other.public()), Verdict::Ok);
    let report = bundle.report(&key.public(), None);
    assert_eq!(report.signed_by.unwrap().keyid, other.public().id());
    // Somebody else who says that he is us.
    let golden = Bundle::golden().statement();
    bundle.sign(&golden.to_payload(), &other);
    assert_eq!(bundle.verdict(&key.public()), Verdict::Broken);
    // Our signature with another key's name on it.
    let text = Bundle::golden().text(ATTESTATION);
    let renamed = text.replace(&key.public().id(), &other.public().id());
    assert_ne!(text, renamed);
    bundle.0.insert(ATTESTATION, renamed.into_bytes());
    assert_eq!(bundle.verdict(&key.public()), Verdict::Broken);
}

#[test]
fn r6_json_that_can_be_read_in_two_ways_is_refused_even_where_it_is_signed() {
    let key = golden_key();
    let big = "1".repeat(400);
    for name in [MANIFEST, RESULT] {
        let first = if name == MANIFEST {
            "\"schema\": 1,"
        } else {
            "\"probes\": "
        };
        for (from, to) in [
            ("{\n", "{\n  \"more\": 1,\n".to_owned()),
            (first, format!("{first}{first}")),
            ("\"limits\"", "\"limits\": [], \"limits\"".to_owned()),
            (
                "\"grade\": \"hard\"",
                "\"grade\": \"hard\", \"sure\": true".to_owned(),
            ),
            ("\"size\": ", "\"size\": 1e3, \"was\": ".to_owned()),
            ("\"size\": ", format!("\"size\": {big}")),
            ("\"size\": ", "\"size\": -".to_owned()),
            ("\"wall\": \"full\"", "\"wall\": null".to_owned()),
            ("}\n", "}\n{}\n".to_owned()),
        ] {
            let mut bundle = Bundle::golden();
            let text = bundle.text(name);
            let changed = match from {
                "}\n" => format!("{text}{{}}\n"),
                from => text.replacen(from, &to, 1),
            };
            assert_ne!(text, changed, "{name} has no {from}");
            bundle.0.insert(name, changed.into_bytes());
            match name {
                MANIFEST => bundle.resign(&key),
                _ => bundle.reseal(&key),
            }
            let report = bundle.report(&key.public(), None);
            assert_eq!(report.verdict, Verdict::Broken, "{name} with {to}");
        }
    }
    let mut bundle = Bundle::golden();
    let payload = bundle.statement().to_payload();
    let payload = String::from_utf8(payload).unwrap();
    for (from, to) in [
        ("{\"_type\"", "{\"more\":1,\"_type\""),
        ("\"checks\":[]", "\"checks\":[\"tests passed\"]"),
        ("\"checks\":[]", "\"checks\":[],\"checks\":[]"),
    ] {
        let changed = payload.replacen(from, to, 1);
        assert_ne!(payload, changed, "{from}");
        bundle.sign(changed.as_bytes(), &key);
        assert_eq!(bundle.verdict(&key.public()), Verdict::Broken, "{to}");
    }
    let mut later = Bundle::golden();
    let text = later
        .text(MANIFEST)
        .replace("\"schema\": 1", "\"schema\": 2");
    later.0.insert(MANIFEST, text.into_bytes());
    let said = failures(&later.report(&key.public(), None));
    assert!(said[0].contains("schema 2 is not known"), "{said:?}");
}

#[test]
fn a_result_that_lies_is_found_even_where_it_is_signed() {
    let key = golden_key();
    type Lie = fn(&mut serde_json::Value);
    let lies: [(&str, Lie); 15] = [
        ("run", |r| r["run"] = "0123456789ab".into()),
        ("name", |r| r["name"] = "other".into()),
        ("status", |r| r["status"] = "failed".into()),
        ("outcome", |r| r["outcome"] = "timed_out".into()),
        ("exit code", |r| r["exit_code"] = 1.into()),
        ("command", |r| r["argv"][0] = "true".into()),
        ("folder", |r| r["folder"] = "/elsewhere".into()),
        ("insertions", |r| r["insertions"] = 7.into()),
        ("probes", |r| r["probes"] = 1.into()),
        ("wall", |r| r["wall"] = "absent".into()),
        ("changed path", |r| r["changes"][0]["path"] = "b.txt".into()),
        ("changed files", |r| r["changed_files"][0] = "b.txt".into()),
        ("omitted", |r| {
            r["omitted"] =
                serde_json::json!([{"path": "x", "why": "ignored", "size": 1, "files": 1}]);
        }),
        ("limits met", |r| {
            r["limit_hits"] = serde_json::json!([["time", "8 h"]]);
        }),
        ("a check that nobody asked for", |r| {
            r["checks"] = serde_json::json!({
                "reports": [{"command": "true", "verdict": "not_run", "executions": []}],
                "environment": "", "duration_ms": 1,
            });
        }),
    ];
    for (what, lie) in lies {
        let mut bundle = Bundle::golden();
        bundle.edit_result(lie);
        bundle.reseal(&key);
        assert_eq!(bundle.verdict(&key.public()), Verdict::Broken, "{what}");
    }
    for side in ["old", "new"] {
        for (field, value) in [
            (
                "oid",
                serde_json::json!("0123456789012345678901234567890123456789"),
            ),
            ("mode", serde_json::json!("symlink")),
        ] {
            let mut bundle = Bundle::golden();
            bundle.edit_result(|result| {
                let changes = result["changes"].as_array_mut().unwrap();
                let change = changes.iter_mut().find(|c| !c[side].is_null()).unwrap();
                change[side][field] = value;
            });
            bundle.reseal(&key);
            assert_eq!(
                bundle.verdict(&key.public()),
                Verdict::Broken,
                "{side} {field}"
            );
        }
    }
}

#[test]
fn a_journal_that_tells_another_story_is_found_even_where_it_is_signed() {
    let key = golden_key();
    type Lie = fn(&mut Event);
    let lies: [(&str, Lie); 7] = [
        ("status", |event| {
            if let Event::End { status } = event {
                *status = RunStatus::Failed;
            }
        }),
        ("exit code", |event| {
            if let Event::CommandEnded { code, .. } = event {
                *code = Some(3);
            }
        }),
        ("memory", |event| {
            if let Event::CommandEnded { peak_bytes, .. } = event {
                *peak_bytes = Some(1);
            }
        }),
        ("command", |event| {
            if let Event::Command { argv } = event {
                argv.push("more".into());
            }
        }),
        ("a proof that failed", |event| {
            if let Event::Proof { probes } = event {
                probes[0].held = false;
            }
        }),
        ("seal", |event| {
            if let Event::Seal { changed, .. } = event {
                *changed += 1;
            }
        }),
        ("backend", |event| {
            if let Event::Enforced { limits, .. } = event {
                limits.pop();
            }
        }),
    ];
    for (what, lie) in lies {
        let mut bundle = Bundle::golden();
        bundle.edit_journal(lie);
        bundle.reseal(&key);
        assert_eq!(bundle.verdict(&key.public()), Verdict::Broken, "{what}");
    }
    // Edited by nobody, it holds: what fails above is the lie.
    let mut bundle = Bundle::golden();
    bundle.edit_journal(|_| {});
    bundle.reseal(&key);
    assert_eq!(failures(&bundle.report(&key.public(), None)), [""; 0]);
}

/// A patch that was replaced, with every hash in every file made to fit, by who has the key.
fn with_patch(edit: impl Fn(&str) -> String) -> Bundle {
    let mut bundle = Bundle::golden();
    let patch = bundle.text(PATCH);
    let changed = edit(&patch);
    assert_ne!(patch, changed);
    let sha256 = sha256_hex(changed.as_bytes());
    bundle.0.insert(PATCH, changed.into_bytes());
    bundle.edit_result(|result| result["patch_sha256"] = sha256.clone().into());
    bundle.edit_journal(|event| {
        if let Event::Seal { patch_sha256, .. } = event {
            *patch_sha256 = sha256.clone();
        }
    });
    bundle.reseal(&golden_key());
    bundle
}

#[test]
fn a_patch_that_makes_something_else_is_found() {
    let key = golden_key().public();
    // A whole content stands in the patch, and does not have its id.
    let added = with_patch(|patch| patch.replace("+no newline", "+no newlinX"));
    let said = failures(&added.report(&key, None));
    assert!(said[0].starts_with("patch: "), "{said:?}");
    // A part of a text: only the base can tell.
    let base = golden_base();
    let edited = with_patch(|patch| patch.replace("+line seven", "+line eleven"));
    assert_eq!(failures(&edited.report(&key, None)), [""; 0]);
    let said = failures(&edited.report(&key, Some(base.path())));
    assert!(said[0].starts_with("base: `a.txt`"), "{said:?}");
    // And the tree: all contents are right, and it is still another one.
    let mut bundle = Bundle::golden();
    let mut manifest = bundle.manifest();
    manifest.tree = ringfence_model::bundle::TreeIdentity::GitTree { id: "1".repeat(40) };
    bundle.0.insert(MANIFEST, golden::pretty(&manifest));
    bundle.resign(&golden_key());
    let said = failures(&bundle.report(&key, Some(base.path())));
    assert!(
        said[0].starts_with("base: the patch makes the tree"),
        "{said:?}"
    );
}

#[test]
fn the_key_in_the_repository_is_not_in_the_bundle() {
    let secret = fs::read_to_string(golden::golden().join("signing.pem")).unwrap();
    let secret = secret.lines().nth(1).unwrap();
    for (name, bytes) in Bundle::golden().0 {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(!text.contains(&secret[20..]), "{name}");
        assert!(
            name != JOURNAL || text.contains("\"exec\""),
            "nothing was observed"
        );
    }
}
