//! What is held, and what a rule approves, as tables.

use super::*;
use crate::changes::{FileMode, Side};

fn flag(kind: FlagKind, severity: Severity) -> Flag {
    Flag {
        kind,
        severity,
        message: "a message".to_owned(),
        evidence: Vec::new(),
        more: 0,
    }
}

fn changed(path: &str) -> Vec<Change> {
    let new = Side {
        mode: FileMode::Regular,
        oid: "1".to_owned(),
        size: 1,
    };
    vec![Change {
        path: path.into(),
        kind: ChangeKind::Added,
        old: None,
        new: Some(new),
        binary: false,
    }]
}

fn ended<'a>(changes: &'a [Change], flags: &'a [Flag]) -> Ended<'a> {
    Ended {
        status: RunStatus::Done,
        lines: 10,
        bytes: 500,
        files: changes.len() as u64,
        changes,
        omitted: &[],
        programs: &[],
        flags,
        checks: ChecksSeen::Hold,
        evidence_complete: true,
    }
}

fn rule() -> Holding {
    Holding {
        auto_approve: Some(AutoApprove {
            checks: ChecksWanted::All,
            max_lines: 50,
            max_files: 20,
            flags: Tolerated::None,
            paths: None,
            from: Origin::default(),
        }),
        ..Holding::default()
    }
}

#[test]
fn a_rule_approves_only_what_each_condition_allows() {
    let changes = changed("src/a.rs");
    let serious = [flag(FlagKind::TestsDeleted, Severity::Serious)];
    let info = [flag(FlagKind::NewProgram, Severity::Info)];
    let steering = changed("sub/Ringfence.toml");
    let program = [ByteText::from("src/a.rs")];
    let left = |why| {
        let (path, size, files) = (ByteText::from("docs/HEAD"), 1, 1);
        [Omitted {
            path,
            why,
            size,
            files,
        }]
    };
    let git = left(WhyOmitted::GitDirectory);
    let secret = left(WhyOmitted::Secret);
    let ignored = left(WhyOmitted::Ignored);
    let good = ended(&changes, &[]);
    let with_ignored = Ended {
        omitted: &ignored,
        ..good
    };
    assert!(auto_approve(&rule(), &with_ignored).is_some());
    assert!(
        auto_approve(&rule(), &good)
            .unwrap()
            .contains("max_lines = 50")
    );
    assert_eq!(auto_approve(&Holding::default(), &good), None);
    for (what, bad) in [
        (
            "a flag",
            Ended {
                flags: &info,
                ..good
            },
        ),
        (
            "a serious flag",
            Ended {
                flags: &serious,
                ..good
            },
        ),
        (
            "no checks",
            Ended {
                checks: ChecksSeen::Absent,
                ..good
            },
        ),
        (
            "a failed check",
            Ended {
                checks: ChecksSeen::Fail,
                ..good
            },
        ),
        (
            "evidence",
            Ended {
                evidence_complete: false,
                ..good
            },
        ),
        ("lines", Ended { lines: 51, ..good }),
        (
            "what steers later runs",
            Ended {
                changes: &steering,
                ..good
            },
        ),
        (
            "a program",
            Ended {
                programs: &program,
                ..good
            },
        ),
        (
            "a git directory that was left behind",
            Ended {
                omitted: &git,
                ..good
            },
        ),
        (
            "a secret that was left behind",
            Ended {
                omitted: &secret,
                ..good
            },
        ),
        ("files", Ended { files: 21, ..good }),
        (
            "bytes",
            Ended {
                bytes: 2 << 20,
                ..good
            },
        ),
        (
            "a failed run",
            Ended {
                status: RunStatus::Failed,
                ..good
            },
        ),
        (
            "a moved base",
            Ended {
                status: RunStatus::BaseMoved,
                ..good
            },
        ),
    ] {
        assert_eq!(auto_approve(&rule(), &bad), None, "{what}");
    }
    let with = |change: fn(&mut AutoApprove)| {
        let mut holding = rule();
        holding.auto_approve.as_mut().map(change).unwrap();
        holding
    };
    let low = with(|rule| rule.flags = Tolerated::Low);
    assert!(
        auto_approve(
            &low,
            &Ended {
                flags: &info,
                ..good
            }
        )
        .is_some()
    );
    assert!(
        auto_approve(
            &low,
            &Ended {
                flags: &serious,
                ..good
            }
        )
        .is_none()
    );
    let unasked = with(|rule| rule.checks = ChecksWanted::None);
    assert!(
        auto_approve(
            &unasked,
            &Ended {
                checks: ChecksSeen::Absent,
                ..good
            }
        )
        .is_some()
    );
    assert!(
        auto_approve(
            &unasked,
            &Ended {
                checks: ChecksSeen::Fail,
                ..good
            }
        )
        .is_none()
    );
    let text = |text: &str| Line {
        text: text.to_owned(),
        from: Origin::default(),
    };
    let mut only = rule();
    let only_rule = only.auto_approve.as_mut().unwrap();
    only_rule.paths = Some(vec![text("docs/**")]);
    assert!(auto_approve(&only, &good).is_none());
    let docs = changed("docs/a.md");
    let of = |changes: &[Change]| {
        let good = Ended { changes, ..good };
        auto_approve(&only, &good).ok_or_else(|| holds(&only, &good)[0].to_string())
    };
    assert!(of(&docs).is_ok());
    // Patterns never widen what a rule may approve.
    for path in ["docs/HEAD", "docs/.x.md", "docs/Makefile", "docs/x.sh"] {
        let why = of(&changed(path)).unwrap_err();
        assert!(
            why.contains(&format!("does not apply: `{path}` is ")),
            "{why}"
        );
    }
}

#[test]
fn what_is_large_or_risky_is_held_by_name() {
    let changes = changed("a");
    let good = ended(&changes, &[]);
    let kinds = |holding: &Holding, ended: &Ended<'_>| -> Vec<HoldKind> {
        holds(holding, ended).iter().map(|hold| hold.kind).collect()
    };
    let usual = Holding::default();
    assert_eq!(kinds(&usual, &good), [HoldKind::NotReviewed]);
    assert_eq!(
        kinds(
            &usual,
            &Ended {
                lines: 1001,
                ..good
            }
        ),
        [HoldKind::TooLarge]
    );
    let bound = |most| {
        Some(Bound {
            most,
            from: Origin::default(),
        })
    };
    let none = Holding {
        lines: bound(None),
        ..Holding::default()
    };
    assert_eq!(
        kinds(
            &none,
            &Ended {
                lines: 1 << 40,
                ..good
            }
        ),
        [HoldKind::NotReviewed]
    );
    let few = Holding {
        files: bound(Some(0)),
        ..Holding::default()
    };
    assert_eq!(kinds(&few, &good), [HoldKind::TooLarge]);
    for (flag, risky) in [
        (flag(FlagKind::RunsOnReview, Severity::Warning), true),
        (flag(FlagKind::RunsOnReview, Severity::Info), false),
        (flag(FlagKind::LinkLeavesTree, Severity::Warning), true),
        (flag(FlagKind::ClaimContradicted, Severity::Serious), true),
        (flag(FlagKind::TestsChanged, Severity::Warning), false),
    ] {
        let flags = [flag];
        let held = holds(
            &usual,
            &Ended {
                flags: &flags,
                ..good
            },
        );
        assert_eq!(held[0].kind == HoldKind::Risky, risky, "{held:?}");
    }
    let flags = vec![flag(FlagKind::SecretAdded, Severity::Serious); 5];
    let held = holds(
        &usual,
        &Ended {
            flags: &flags,
            lines: 5000,
            ..good
        },
    );
    assert_eq!(held.len(), 2);
    assert!(held[0].to_string().starts_with("risky: secret_added"));
    assert!(held[0].detail.ends_with("and 2 more"), "{}", held[0]);
    assert_eq!(held[1].to_string(), "too large: 5000 lines, at most 1000");
}
