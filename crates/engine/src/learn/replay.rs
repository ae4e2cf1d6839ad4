//! What a policy would have said to runs that are over.

use std::collections::BTreeSet;
use std::path::Path;

use ringfence_model::limits::Limit;
use ringfence_model::observed::Wrote;
use ringfence_model::policy::area::Area;
use ringfence_model::policy::explain::{Explanation, Question};
use ringfence_model::policy::glob::{GlobError, Globs};
use ringfence_model::policy::network::{Effect, Protocol, Rules, Verdict};
use ringfence_model::policy::preset::PREFIX;
use ringfence_model::policy::{Effective, Files, Line};
use serde::Serialize;

use super::Seen;
use super::files::is_git;
use super::traffic::{Ask, End, Traced};
use super::wants::learned;

/// BOUND: what is listed of what would have been denied; the rest is counted.
const MAX_LISTED: usize = 100;

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Replay {
    /// Requests, connections, written paths, changes and bounds that were asked for and given.
    pub asked: u64,
    pub denied: u64,
    pub listed: Vec<WouldDeny>,
    /// Connections whose content was not seen, where the policy wants to see it.
    pub unsure: u64,
    /// Lines that nothing used.
    pub unused: Vec<String>,
}

/// Something that a run did and this policy does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WouldDeny {
    pub run: String,
    pub what: String,
}

/// Asks a policy about everything that these runs did.
pub fn replay(policy: &Effective, runs: &[Seen]) -> Result<Replay, GlobError> {
    let mut out = Replay::default();
    let mut used = vec![false; policy.network.rules.0.len()];
    for run in runs {
        network(policy, run, &mut used, &mut out);
        files(policy, run, &mut out)?;
        bounds(policy, run, &mut out);
    }
    unused_rules(policy, &used, &mut out);
    unused_lines(policy, runs, &mut out)?;
    Ok(out)
}

impl Replay {
    fn ask(&mut self, run: &Seen, times: u64, allowed: bool, what: impl FnOnce() -> String) {
        self.asked += times;
        if allowed {
            return;
        }
        self.denied += times;
        if self.listed.len() < MAX_LISTED {
            let would = WouldDeny {
                run: run.name.clone(),
                what: what(),
            };
            if !self.listed.contains(&would) {
                self.listed.push(would);
            }
        }
    }
}

fn network(policy: &Effective, run: &Seen, used: &mut [bool], out: &mut Replay) {
    let given = policy.network.rules.0.len();
    let mut rules = Rules(policy.network.rules.0.clone());
    rules
        .0
        .extend(learned(std::slice::from_ref(run), &policy.network.indexes));
    for traced in &run.network {
        if !matches!(traced.end, End::Passed { .. }) {
            continue;
        }
        let mut rely = |rule: Option<usize>| {
            if let Some(at) = rule.filter(|at| *at < given) {
                used[at] = true;
            }
        };
        match asked(&rules, policy, traced) {
            Said::Allowed(rule) => {
                rely(rule);
                out.ask(run, traced.times, true, String::new);
            }
            Said::Unsure(rule) => {
                rely(Some(rule));
                out.asked += traced.times;
                out.unsure += traced.times;
            }
            Said::Denied => out.ask(run, traced.times, false, || traced.ask.to_string()),
            Said::Nothing => {}
        }
    }
}

enum Said {
    /// By which rule, where it is one.
    Allowed(Option<usize>),
    Unsure(usize),
    Denied,
    /// It is no question of rules.
    Nothing,
}

fn asked(rules: &Rules, policy: &Effective, traced: &Traced) -> Said {
    let doubled = traced
        .ask
        .host()
        .is_some_and(|host| policy.network.mocks.iter().any(|mock| mock.host == *host));
    if doubled {
        return Said::Allowed(None);
    }
    let at = |rule| rules.0.iter().position(|own| std::ptr::eq(own, rule));
    let takes = |rule: &ringfence_model::policy::network::NetworkRule| {
        traced.address.is_none_or(|address| rule.takes(address))
    };
    match &traced.ask {
        Ask::Request {
            host,
            port,
            method,
            path,
        } => {
            let verdict = match rules.connection(host, *port) {
                Verdict::Allow(rule) if rule.protocol == Protocol::Tcp => Verdict::Allow(rule),
                _ => rules.request(host, *port, method, path),
            };
            match verdict {
                Verdict::Allow(rule) if takes(rule) => Said::Allowed(at(rule)),
                _ => Said::Denied,
            }
        }
        Ask::Connection {
            host,
            port,
            protocol,
        } => match rules.connection(host, *port) {
            Verdict::Allow(rule) if !takes(rule) => Said::Denied,
            Verdict::Allow(rule) if rule.protocol == Protocol::Tcp => Said::Allowed(at(rule)),
            Verdict::Allow(_) if *protocol == Protocol::Tcp => Said::Denied,
            Verdict::Allow(rule) => match (at(rule), rules.looks_inside(host, *port)) {
                (Some(at), true) => Said::Unsure(at),
                (at, _) => Said::Allowed(at),
            },
            Verdict::Deny { .. } => Said::Denied,
        },
        Ask::Name(_) | Ask::Other(_) => Said::Nothing,
    }
}

fn files(policy: &Effective, run: &Seen, out: &mut Replay) -> Result<(), GlobError> {
    let written = written(run);
    // Patterns are read once; what is left of the policy is asked for each path.
    let areas = Effective {
        files: Files {
            hide: Vec::new(),
            export: None,
            ..policy.files.clone()
        },
        ..Effective::default()
    };
    for path in &written {
        let said = areas.explain(&Question::Path(path.clone()));
        let yes = matches!(said, Explanation::Path { write, .. } if write.yes);
        out.ask(run, 1, yes, || format!("write {path:?}"));
    }
    let hide = globs(&policy.files.hide)?;
    let export = policy.files.export.as_deref().map(globs).transpose()?;
    for path in run.used.iter().flat_map(|used| &used.changed_files) {
        let path = path.to_text();
        let own = Path::new(&path);
        let yes = export.as_ref().is_none_or(|export| export.matches(own)) && !hide.matches(own);
        out.ask(run, 1, yes, || format!("export {path:?}"));
    }
    Ok(())
}

/// Each path that was written, once.
fn written(run: &Seen) -> BTreeSet<String> {
    let mut written = BTreeSet::new();
    for write in &run.writes {
        let other = match &write.what {
            Wrote::Renamed { from } => Some(from),
            Wrote::Exchanged { with } => Some(with),
            _ => None,
        };
        let paths = std::iter::once(&write.path).chain(other);
        let paths = paths.map(|path| path.to_text());
        written.extend(paths.filter(|path| !is_git(path)));
    }
    written
}

fn globs(lines: &[Line]) -> Result<Globs, GlobError> {
    let texts: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
    Globs::parse(&texts)
}

fn bounds(policy: &Effective, run: &Seen, out: &mut Replay) {
    let Some(used) = &run.used else {
        return;
    };
    for (limit, needed) in [
        (Limit::Time, used.duration_ms.div_ceil(1000)),
        (Limit::Cpu, used.cpu_ms.div_ceil(1000)),
        (Limit::Memory, used.peak_bytes),
    ] {
        if let Some(bound) = policy.limits.get(&limit) {
            let yes = bound.most.is_none_or(|most| needed <= most);
            out.ask(run, 1, yes, || format!("{} of {needed}", limit.as_str()));
        }
    }
}

/// Rules that nothing relied on. A preset counts as one: nobody can take out a part of it.
fn unused_rules(policy: &Effective, used: &[bool], out: &mut Replay) {
    let preset = |from: &str| {
        let name = from.strip_prefix(PREFIX)?.split_whitespace().next()?;
        Some(format!("{PREFIX}{name}"))
    };
    let rules = || policy.network.rules.0.iter().zip(used);
    let relied: BTreeSet<String> = rules()
        .filter(|(_, used)| **used)
        .filter_map(|(rule, _)| preset(&rule.from.file))
        .collect();
    for (rule, used) in rules() {
        if *used || rule.effect == Effect::Deny {
            continue;
        }
        let line = match preset(&rule.from.file) {
            Some(preset) if relied.contains(&preset) => continue,
            Some(preset) => preset,
            None => format!("{rule} ({})", rule.from),
        };
        if !out.unused.contains(&line) {
            out.unused.push(line);
        }
    }
}

fn unused_lines(policy: &Effective, runs: &[Seen], out: &mut Replay) -> Result<(), GlobError> {
    let written: BTreeSet<String> = runs.iter().flat_map(written).collect();
    let changed: BTreeSet<String> = runs
        .iter()
        .flat_map(|run| &run.used)
        .flat_map(|used| &used.changed_files)
        .map(|path| path.to_text())
        .collect();
    for line in policy.files.write.iter().flatten() {
        let Ok(area) = Area::parse(&line.text) else {
            continue;
        };
        let holds = |path: &String| Area::parse(path).is_ok_and(|path| area.holds(&path));
        if !written.iter().any(holds) {
            out.unused
                .push(format!("write {:?} ({})", line.text, line.from));
        }
    }
    for line in policy.files.export.iter().flatten() {
        let own = Globs::parse(&[&line.text])?;
        if !changed.iter().any(|path| own.matches(Path::new(path))) {
            out.unused
                .push(format!("export {:?} ({})", line.text, line.from));
        }
    }
    Ok(())
}
