//! Which events are wanted. Each wish narrows; all of them together let through what all let
//! through.

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use ringfence_model::ByteText;
use ringfence_model::gate::Happened;
use ringfence_model::journal::Event;
use ringfence_model::observed::{Exec, Write, Wrote};
use ringfence_model::outcome::RunStatus;
use ringfence_model::rounds::ended_well;
use ringfence_model::sandbox::EndReason;

use super::{AuditError, Story};

/// What is wanted.
#[derive(Debug, Default)]
pub struct Filter {
    pattern: Option<RegexMatcher>,
    /// Only what failed, was refused or met a limit; and what was written by a program that failed.
    pub failed: bool,
    /// Only writes.
    pub writes: bool,
    /// Only what the network was asked for, and the gate's end.
    pub network: bool,
}

impl Filter {
    /// Only events whose words, program or path hold this regular expression; of a write, its
    /// program counts as well.
    pub fn matching(pattern: &str) -> Result<Self, AuditError> {
        // BOUND: a pattern that needs more memory than this is no pattern of a person.
        const PATTERN_BYTES: usize = 16 << 20;
        let matcher = RegexMatcherBuilder::new()
            .size_limit(PATTERN_BYTES)
            .build(pattern)
            .map_err(|source| AuditError::ParsePattern {
                pattern: pattern.to_owned(),
                source,
            })?;
        Ok(Self {
            pattern: Some(matcher),
            ..Self::default()
        })
    }

    /// Whether everything is let through.
    pub fn is_empty(&self) -> bool {
        self.pattern.is_none() && !self.failed && !self.writes && !self.network
    }

    /// Whether something that has only a path is wanted.
    pub fn is_path_wanted(&self, path: &ByteText) -> bool {
        self.holds(path.as_bytes())
    }

    fn holds(&self, bytes: &[u8]) -> bool {
        let is_match = |pattern: &RegexMatcher| pattern.is_match(bytes).unwrap_or(false);
        self.pattern.as_ref().is_none_or(is_match)
    }

    /// Whether an event is wanted. An exit is wanted where its exec is.
    pub fn wants(&self, story: &Story, event: &Event) -> bool {
        let of_network = matches!(
            event,
            Event::Network(_)
                | Event::GateLost { .. }
                | Event::CheckNetwork { .. }
                | Event::CheckGateLost { .. }
        );
        (!self.writes || matches!(event, Event::Write(_)))
            && (!self.network || of_network)
            && (!self.failed || is_failure(story, event))
            && self.matches(story, event)
    }

    fn matches(&self, story: &Story, event: &Event) -> bool {
        if self.pattern.is_none() {
            return true;
        }
        let holds = |bytes: &[u8]| self.holds(bytes);
        let path = |path: &ByteText| holds(path.as_bytes());
        let words = |argv: &[ByteText]| holds(&joined(argv));
        let ran = |exec: &Exec| {
            words(&exec.argv) || path(&exec.exe) || exec.asked.as_ref().is_some_and(path)
        };
        let numbered = |exec: u64| story.exec(exec).is_some_and(|found| ran(&found.exec));
        match event {
            Event::Exec(exec) => ran(exec),
            Event::Exit(exit) => numbered(exit.exec),
            Event::ExecFailed(failed) => path(&failed.asked) || words(&failed.argv),
            Event::Write(write) => paths(write).any(path) || write.exec.is_some_and(numbered),
            Event::Program(program) => path(&program.path),
            Event::Task { argv, folder, .. } => words(argv) || path(folder),
            Event::Command { argv } => words(argv),
            Event::CheckBegan { command, .. } => holds(command.as_bytes()),
            Event::Denial(refused) => {
                holds(refused.operation.as_bytes()) || holds(refused.reason.as_bytes())
            }
            Event::Network(traffic) | Event::CheckNetwork { traffic, .. } => {
                path(&traffic.host) || traffic.path.as_ref().is_some_and(path)
            }
            Event::Limit { detail, .. }
            | Event::GateLost { detail }
            | Event::CheckGateLost { detail, .. } => holds(detail.as_bytes()),
            Event::Enforced { .. }
            | Event::Proof { .. }
            | Event::CommandEnded { .. }
            | Event::Seal { .. }
            | Event::CheckEnded { .. }
            | Event::IterationBegan { .. }
            | Event::IterationCheck { .. }
            | Event::IterationEnded { .. }
            | Event::ExecutionEnded { .. }
            | Event::End { .. } => false,
        }
    }
}

fn joined(argv: &[ByteText]) -> Vec<u8> {
    let words: Vec<&[u8]> = argv.iter().map(ByteText::as_bytes).collect();
    words.join(&b' ')
}

fn paths(write: &Write) -> impl Iterator<Item = &ByteText> {
    let other = match &write.what {
        Wrote::Renamed { from } => Some(from),
        Wrote::Exchanged { with } => Some(with),
        Wrote::Linked { to } => Some(to),
        _ => None,
    };
    std::iter::once(&write.path).chain(other)
}

fn is_failure(story: &Story, event: &Event) -> bool {
    let numbered = |exec: u64| {
        story
            .ending_of(exec)
            .is_some_and(|ending| ending.is_failure())
    };
    match event {
        Event::Exec(exec) => numbered(exec.exec),
        Event::Exit(exit) => exit.signal.is_some() || exit.code.is_some_and(|code| code != 0),
        Event::Write(write) => write.exec.is_some_and(numbered),
        Event::ExecFailed(_)
        | Event::Denial(_)
        | Event::Limit { .. }
        | Event::GateLost { .. }
        | Event::CheckGateLost { .. } => true,
        Event::Network(traffic) | Event::CheckNetwork { traffic, .. } => matches!(
            traffic.result,
            Happened::Denied { .. } | Happened::Failed { .. }
        ),
        Event::CommandEnded { outcome, code, .. }
        | Event::CheckEnded { outcome, code, .. }
        | Event::IterationCheck { outcome, code, .. }
        | Event::IterationEnded { outcome, code, .. } => !ended_well(*outcome, *code),
        Event::Proof { probes } => probes
            .iter()
            .any(|probe| !probe.held && !probe.is_left_out()),
        Event::End { status } => matches!(status, RunStatus::Failed | RunStatus::Lost),
        Event::ExecutionEnded { reason, .. } => matches!(
            reason,
            EndReason::DiskFull | EndReason::JournalFull | EndReason::Died
        ),
        Event::Task { .. }
        | Event::Enforced { .. }
        | Event::Command { .. }
        | Event::CheckBegan { .. }
        | Event::IterationBegan { .. }
        | Event::Program(_)
        | Event::Seal { .. } => false,
    }
}
