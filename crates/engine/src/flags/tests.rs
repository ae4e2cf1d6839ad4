//! Facts for the tests of rules, made with the types that real runs make.

use ringfence_model::changes::{FileMode, Side};
use ringfence_model::check::Checks;
use ringfence_model::journal::{Chain, Event, Line, Lines};
use ringfence_model::observed::{Exec, Exit, Program, Write, Wrote};

use super::*;
use crate::flags::gather::Gathered;

/// A change: `added`, `modified`, `deleted`, or `from -> ` and the old path.
pub fn change(path: &str, how: &str) -> Change {
    let side = || {
        Some(Side {
            mode: FileMode::Regular,
            oid: String::new(),
            size: 1,
        })
    };
    let kind = match how {
        "added" => ringfence_model::changes::ChangeKind::Added,
        "modified" => ringfence_model::changes::ChangeKind::Modified,
        "deleted" => ringfence_model::changes::ChangeKind::Deleted,
        from => ringfence_model::changes::ChangeKind::Renamed { from: from.into() },
    };
    Change {
        path: path.into(),
        old: side().filter(|_| how != "added"),
        new: side().filter(|_| how != "deleted"),
        kind,
        binary: false,
    }
}

/// A program that ran, of a list: its number is its place, from 1.
#[derive(Clone, Debug)]
pub struct Run {
    argv: Vec<ByteText>,
    exe: Option<String>,
    parent: Option<u64>,
    replaces: Option<u64>,
    code: Option<i32>,
    verified: bool,
}

impl Run {
    pub fn new(line: &str) -> Self {
        Self {
            argv: line.split(' ').map(ByteText::from).collect(),
            exe: None,
            parent: None,
            replaces: None,
            code: None,
            verified: true,
        }
    }

    pub fn exe(mut self, path: &str) -> Self {
        self.exe = Some(path.to_owned());
        self
    }

    pub fn below(mut self, exec: u64) -> Self {
        self.parent = Some(exec);
        self
    }

    pub fn replaces(mut self, exec: u64) -> Self {
        self.replaces = Some(exec);
        self
    }

    pub fn exits(mut self, code: i32) -> Self {
        self.code = Some(code);
        self
    }

    pub fn unverified(mut self) -> Self {
        self.verified = false;
        self
    }
}

/// The evidence of a journal in which these programs ran.
pub fn evidence(runs: &[Run]) -> Evidence {
    evidence_with(runs, &[])
}

/// The same, with writes: who, and what.
pub fn evidence_with(runs: &[Run], writes: &[(u64, &str)]) -> Evidence {
    let mut events = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let number = at as u64 + 1;
        let exe = run.exe.clone().unwrap_or_else(|| {
            let first = run.argv[0].to_text();
            if first.starts_with('/') {
                first
            } else {
                format!("/usr/bin/{first}")
            }
        });
        events.push(Event::Exec(Exec {
            exec: number,
            pid: 10 + at as i32,
            started: 1,
            parent: run.parent,
            parent_pid: 1,
            replaces: run.replaces,
            program: number as u32,
            exe: exe.as_str().into(),
            asked: None,
            argv: run.argv.clone(),
            argv_cut: None,
            cwd: "/workspace".into(),
            verified: run.verified,
        }));
        events.push(Event::Program(Program {
            program: number as u32,
            path: exe.as_str().into(),
            size: 1,
            sha256: None,
        }));
    }
    for (exec, path) in writes {
        events.push(Event::Write(Write {
            exec: Some(*exec),
            pid: 10,
            path: (*path).into(),
            what: Wrote::Opened,
        }));
    }
    for (at, run) in runs.iter().enumerate() {
        if run.code.is_some() {
            events.push(Event::Exit(Exit {
                exec: at as u64 + 1,
                code: run.code,
                signal: None,
                duration_us: 1500,
                cpu_us: None,
            }));
        }
    }
    let mut chain = Chain::default();
    let lines = events.into_iter().enumerate();
    let text: String = lines
        .map(|(at, event)| chain.append(at as i64, event).unwrap())
        .collect();
    Evidence::of_journal(
        &Lines::new(text.as_bytes())
            .collect::<Result<Vec<Line>, _>>()
            .unwrap(),
    )
}

/// Facts in which nothing happened; a test sets what it needs.
pub struct World {
    pub changes: Vec<Change>,
    pub omitted: Vec<Omitted>,
    pub lines: (u64, u64),
    pub gathered: Gathered,
    pub evidence: Evidence,
    pub claim: Option<Result<Claim, NoClaim>>,
    pub succeeded: bool,
    pub known: Known,
    pub prefix: Vec<u8>,
    pub canary: Option<Vec<u8>>,
    pub unexplained: Vec<ByteText>,
    pub checks: Checks,
}

impl Default for World {
    fn default() -> Self {
        Self {
            changes: Vec::new(),
            omitted: Vec::new(),
            lines: (0, 0),
            gathered: Gathered::default(),
            evidence: Evidence::default(),
            claim: None,
            succeeded: true,
            known: Known::default(),
            prefix: Vec::new(),
            canary: None,
            unexplained: Vec::new(),
            checks: Checks::default(),
        }
    }
}

impl World {
    pub fn of(changes: &[(&str, &str)]) -> Self {
        Self {
            changes: changes
                .iter()
                .map(|(path, how)| change(path, how))
                .collect(),
            ..Self::default()
        }
    }

    /// What all rules say, of a patch of these lines (`+` or `-` first) of the first change.
    pub fn flags(&self, lines: &[&str]) -> Vec<Flag> {
        let facts = Facts {
            changes: &self.changes,
            omitted: &self.omitted,
            insertions: self.lines.0,
            deletions: self.lines.1,
            gathered: &self.gathered,
            evidence: &self.evidence,
            claim: match &self.claim {
                None => Ok(None),
                Some(Ok(claim)) => Ok(Some(claim)),
                Some(Err(why)) => Err(why),
            },
            succeeded: self.succeeded,
            known: &self.known,
            inside: b"/workspace",
            prefix: &self.prefix,
            canary: self.canary.as_deref(),
            unexplained: &self.unexplained,
            checks: &self.checks,
        };
        let count = |sign: &str| lines.iter().filter(|line| line.starts_with(sign)).count();
        let patch = format!(
            "diff --git a/x b/x\n@@ -1,{} +1,{} @@\n{}\n",
            count("-"),
            count("+"),
            lines.join("\n")
        );
        review(&facts, patch.as_bytes()).unwrap().flags
    }

    /// The kinds, with the severity of each.
    pub fn kinds(&self, lines: &[&str]) -> Vec<String> {
        let flags = self.flags(lines);
        let word = |flag: &Flag| format!("{} {}", flag.severity.as_str(), flag.kind.as_str());
        flags.iter().map(word).collect()
    }
}

#[test]
fn the_worst_comes_first_and_evidence_is_bounded() {
    let mut found = Found::default();
    for number in 0..30 {
        let name: ByteText = format!("f{number}").as_str().into();
        found.add(FlagKind::BinaryChanged, Severity::Info, "m", path(&name));
    }
    found.add(FlagKind::SecretAdded, Severity::Serious, "m", None);
    found.add(FlagKind::OddName, Severity::Warning, "m", None);
    let flags = found.finish();
    let order: Vec<Severity> = flags.iter().map(|flag| flag.severity).collect();
    assert_eq!(
        order,
        [Severity::Serious, Severity::Warning, Severity::Info]
    );
    assert_eq!((flags[2].evidence.len(), flags[2].more), (MAX_EVIDENCE, 10));
}

#[test]
fn nothing_gives_no_flag() {
    assert_eq!(World::default().flags(&[]), []);
}
