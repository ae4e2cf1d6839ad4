//! What was observed of a run, in numbers and short lists: for the result and the summary. The
//! journal has all of it.

use std::collections::BTreeMap;

use ringfence_model::ByteText;
use ringfence_model::gate::Happened;
use ringfence_model::limits::Limit;
use ringfence_model::policy::network::Reason;
use serde::{Deserialize, Serialize};

use crate::denials::Denials;
use crate::evidence::{Evidence, Ran};
use crate::flags::{End, test_runs};

/// BOUND: of each list.
const LISTED: usize = 10;
/// BOUND: test commands; an agent that works on a test tool may run thousands.
const TESTS: usize = 50;
/// BOUND: arguments that are kept of a command, and bytes of each.
const WORDS: usize = 16;
const WORD_BYTES: usize = 200;

/// Facts about what ran.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observations {
    /// Programs that began to run.
    pub execs: u64,
    /// Those that ended with a code other than 0, or by a signal.
    pub failed: u64,
    /// Those that were asked for and did not run.
    pub not_started: u64,
    /// Those of which only is known what was asked for.
    pub unverified: u64,
    /// Different files that were run.
    pub programs: u64,
    pub most_run: Vec<Times>,
    pub most_failed: Vec<Times>,
    /// Test commands, in order; the last ones where there are many.
    pub tests: Vec<TestSeen>,
    /// Files opened for writing and entries changed below the workspace.
    pub writes: u64,
    pub denials: u64,
    pub most_denied: Vec<Denied>,
    /// Bounds that were met.
    pub limits: Vec<Limit>,
    /// What the gate saw. Absent where nothing was asked of it.
    #[serde(default, skip_serializing_if = "NetworkSeen::is_nothing")]
    pub network: NetworkSeen,
}

/// What was asked of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSeen {
    /// Requests and connections that were let through.
    pub passed: u64,
    pub denied: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub most_asked: Vec<HostTimes>,
    pub most_denied: Vec<HostDenied>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostTimes {
    pub host: ByteText,
    pub count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostDenied {
    pub host: ByteText,
    pub reason: Reason,
    pub count: u64,
    /// The rule that would allow it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<String>,
}

impl NetworkSeen {
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    fn of(evidence: &Evidence) -> Self {
        let mut seen = Self::default();
        let mut hosts: BTreeMap<&ByteText, u64> = BTreeMap::new();
        for (_, traffic) in &evidence.network {
            match &traffic.result {
                Happened::Allowed { sent, received, .. } => {
                    seen.passed += traffic.times;
                    seen.sent_bytes = seen.sent_bytes.saturating_add(*sent);
                    seen.received_bytes = seen.received_bytes.saturating_add(*received);
                    *hosts.entry(&traffic.host).or_default() += traffic.times;
                }
                Happened::Denied { .. } => seen.denied += traffic.times,
                _ => {}
            }
        }
        seen.most_asked = sorted(hosts)
            .map(|(host, count)| HostTimes {
                host: host.clone(),
                count,
            })
            .collect();
        let denied = Denials::of([evidence]).network.into_iter().take(LISTED);
        seen.most_denied = denied
            .map(|denied| HostDenied {
                host: denied.host,
                reason: denied.reason,
                count: denied.times,
                allow: denied.allow,
            })
            .collect();
        seen
    }
}

/// A program or command, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    pub argv: Vec<ByteText>,
    pub count: u64,
}

/// A test command that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TestSeen {
    pub exec: u64,
    /// What kind of test command, such as `cargo test`.
    pub runner: String,
    pub argv: Vec<ByteText>,
    pub result: TestResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// By the host's clock, when it began.
    pub time_us: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TestResult {
    Passed,
    Failed,
    Unknown,
}

/// What was not let through.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denied {
    pub operation: String,
    pub reason: String,
    pub count: u64,
}

impl Observations {
    pub fn of(evidence: &Evidence, hits: &[(Limit, String)]) -> Self {
        let mut limits: Vec<Limit> = hits.iter().map(|(limit, _)| *limit).collect();
        limits.sort_unstable();
        limits.dedup();
        let runs: Vec<&Ran> = evidence.execs.values().collect();
        let has_failed = |ran: &&&Ran| {
            let exit = ran.exit.as_ref();
            exit.is_some_and(|e| e.code.is_some_and(|code| code != 0) || e.signal.is_some())
        };
        let mut programs: BTreeMap<&ByteText, u64> = BTreeMap::new();
        for ran in &runs {
            *programs.entry(&ran.exec.exe).or_default() += 1;
        }
        let mut failed: BTreeMap<&[ByteText], u64> = BTreeMap::new();
        for ran in runs.iter().filter(has_failed) {
            *failed.entry(ran.exec.argv.as_slice()).or_default() += 1;
        }
        let mut denied: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (_, refused) in &evidence.refused {
            *denied
                .entry((&refused.operation, &refused.reason))
                .or_default() += 1;
        }
        let tests: Vec<TestSeen> = test_runs(evidence).iter().map(test).collect();
        Self {
            execs: runs.len() as u64,
            failed: failed.values().sum(),
            not_started: evidence.failed.len() as u64,
            unverified: runs.iter().filter(|ran| !ran.exec.verified).count() as u64,
            programs: programs.len() as u64,
            most_run: most(programs, |path| short(std::slice::from_ref(path))),
            most_failed: most(failed, short),
            tests: tests[tests.len().saturating_sub(TESTS)..].to_vec(),
            writes: evidence.writes.len() as u64,
            denials: evidence.refused.len() as u64,
            most_denied: sorted(denied)
                .map(|((operation, reason), count)| Denied {
                    operation: operation.to_owned(),
                    reason: reason.to_owned(),
                    count,
                })
                .collect(),
            limits,
            network: NetworkSeen::of(evidence),
        }
    }
}

fn test(run: &crate::flags::TestRun<'_>) -> TestSeen {
    TestSeen {
        exec: run.ran.exec.exec,
        runner: run.runner.to_owned(),
        argv: short(&run.ran.exec.argv),
        result: match run.end {
            End::Passed => TestResult::Passed,
            End::Failed => TestResult::Failed,
            End::Unknown => TestResult::Unknown,
        },
        code: run.exit.and_then(|exit| exit.code),
        signal: run.exit.and_then(|exit| exit.signal),
        duration_ms: run.exit.map(|exit| exit.duration_us / 1000),
        time_us: run.ran.time_us,
    }
}

fn most<K: Ord>(counts: BTreeMap<K, u64>, words: impl Fn(K) -> Vec<ByteText>) -> Vec<Times> {
    sorted(counts)
        .map(|(key, count)| Times {
            argv: words(key),
            count,
        })
        .collect()
}

/// The most frequent first.
fn sorted<K: Ord>(counts: BTreeMap<K, u64>) -> impl Iterator<Item = (K, u64)> {
    let mut list: Vec<(K, u64)> = counts.into_iter().collect();
    list.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    list.into_iter().take(LISTED)
}

/// HOSTILE: arguments are as long as an agent likes.
fn short(argv: &[ByteText]) -> Vec<ByteText> {
    argv.iter()
        .take(WORDS)
        .map(|word| ByteText::from(&word.0[..word.0.len().min(WORD_BYTES)]))
        .collect()
}
