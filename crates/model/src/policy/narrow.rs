//! A policy that a repository proposes: it can take away from what the host allows, never add.
//!
//! INVARIANT: what a policy allows after [`narrow`] it allowed before. What the proposal asks beyond
//! is left out and told.

mod rules;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::area::Area;
use super::document::{AutoText, Document, EnvironmentText, HoldingText};
use super::export::covers;
use super::network::{Effect, NetworkRule, Origin};
use super::review::Review;
use super::sources::Sources;
use super::{Bounds, Effective, Line, SecretRule, Variable, bound};
use crate::check::MAX_CHECKS;
use crate::gate::Index;
use crate::limits::Limits;

/// Something that a proposal asked for and does not get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    pub item: String,
    pub why: String,
    pub from: Origin,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: `{}` is ignored: {}", self.from, self.item, self.why)
    }
}

/// A proposal, with its presets resolved.
#[derive(Clone, Debug)]
pub struct Proposal {
    pub document: Document,
    /// Its rules that allow. `None`: it says nothing of the network.
    pub allow: Option<Vec<NetworkRule>>,
}

/// Takes away what the proposal does not want. `usual` are the bounds where the policy says none.
pub fn narrow(policy: &mut Effective, proposal: Proposal, usual: &Limits) -> Vec<Refused> {
    let mut narrowing = Narrowing {
        policy,
        refused: Vec::new(),
    };
    let mut document = proposal.document;
    narrowing.files(&mut document);
    narrowing.network(&mut document, proposal.allow);
    narrowing.env(&mut document);
    narrowing.review(document.review);
    narrowing.holding(document.holding);
    narrowing.limits(document.limits, usual);
    narrowing.environment(document.environment);
    narrowing.sources(document.sources);
    narrowing.refused
}

struct Narrowing<'p> {
    policy: &'p mut Effective,
    refused: Vec<Refused>,
}

/// BOUND: characters of an item that are told.
const ITEM: usize = 120;
const ONLY_HOST: &str = "only the host's own policy can give it";

impl Narrowing<'_> {
    fn refuse(&mut self, item: impl fmt::Display, from: &Origin, why: &str) {
        self.refused.push(Refused {
            // HOSTILE: a pattern can be as long as the file.
            item: item.to_string().chars().take(ITEM).collect(),
            why: why.to_owned(),
            from: from.clone(),
        });
    }

    fn files(&mut self, asked: &mut Document) {
        let before = self.policy.clone();
        let files = &mut self.policy.files;
        add(&mut files.hide, std::mem::take(&mut asked.hide));
        add(&mut files.read_only, std::mem::take(&mut asked.read_only));
        let mut lost = Vec::new();
        if let Some(asked) = asked.write.take() {
            let why = "the host's policy does not let it be written";
            // An area of its own would win over a wider one that the host keeps read-only: it counts
            // only if the host lets just that area be written.
            let fits = |line: &Line| before.writable(&line.text).yes;
            let (kept, out) = common(files.write.take(), asked, fits, holds);
            files.write = Some(kept);
            lost.extend(out.into_iter().map(|line| (line, why)));
        }
        if let Some(asked) = asked.export.take() {
            let why = "it is not surely within what the host's policy exports";
            let own = files.export.take();
            let given = before.files.export.as_deref();
            let fits = |line: &Line| {
                let covered = |own: &Line| covers(&own.text, &line.text);
                given.is_none_or(|given| given.iter().any(covered))
            };
            let (kept, out) = common(own, asked, fits, covers);
            files.export = Some(kept);
            lost.extend(out.into_iter().map(|line| (line, why)));
        }
        for (line, why) in lost {
            self.refuse(line.text, &line.from, why);
        }
        for mount in asked.mounts.drain(..) {
            let given = self.policy.files.mounts.iter().any(|own| {
                let same = own.host == mount.host && own.inside == mount.inside;
                same && own.writable >= mount.writable
            });
            if !given {
                let item = format!("files.mount {}", mount.inside.display());
                self.refuse(item, &mount.from, ONLY_HOST);
            }
        }
    }

    fn network(&mut self, asked: &mut Document, allow: Option<Vec<NetworkRule>>) {
        let network = &mut self.policy.network;
        let mut lost = Vec::new();
        if let Some(asked) = allow {
            let (mut kept, out) = rules::common(&network.rules.0, asked);
            lost = out;
            let denials = network.rules.0.iter();
            kept.extend(denials.filter(|rule| rule.effect == Effect::Deny).cloned());
            network.rules.0 = kept;
        }
        for rule in asked.deny.drain(..) {
            if !network.rules.0.contains(&rule) {
                network.rules.0.push(rule);
            }
        }
        // An index that cannot be asked names no hosts either.
        let rules = &network.rules;
        let reached = |index: &Index| rules.ports(&index.host).contains(&index.port);
        network.indexes.retain(reached);
        for (rule, why) in lost {
            self.refuse(&rule, &rule.from, why);
        }
        match asked.cache.take() {
            Some((false, _)) => self.policy.network.cache = false,
            Some((true, from)) if !self.policy.network.cache => {
                self.refuse("network.cache", &from, ONLY_HOST);
            }
            _ => {}
        }
        for (mock, from) in asked.mocks.drain(..) {
            if !self.policy.network.mocks.contains(&mock) {
                self.refuse(format!("network.mock {}", mock.host), &from, ONLY_HOST);
            }
        }
        for secret in asked.secrets.drain(..) {
            let known = |own: &SecretRule| own.name == secret.name;
            if !self.policy.secrets.iter().any(known) {
                self.refuse(format!("secrets.{}", secret.name), &secret.from, ONLY_HOST);
            }
        }
    }

    fn env(&mut self, asked: &mut Document) {
        if let Some(asked) = asked.pass.take() {
            for line in &asked {
                if !self.policy.env.pass.iter().any(|own| own.text == line.text) {
                    self.refuse(format!("env.pass {}", line.text), &line.from, ONLY_HOST);
                }
            }
            let wanted = |own: &Line| asked.iter().any(|line| line.text == own.text);
            self.policy.env.pass.retain(wanted);
        }
        for (name, variable) in std::mem::take(&mut asked.set) {
            let same = |own: &Variable| own.value == variable.value;
            if !self.policy.env.set.get(&name).is_some_and(same) {
                self.refuse(format!("env.set {name}"), &variable.from, ONLY_HOST);
            }
        }
    }

    /// A folder can ask for more looks, and for nothing that a look could reach.
    fn review(&mut self, asked: Review) {
        let own = &mut self.policy.review;
        let mut lost = Vec::new();
        for check in asked.checks {
            if own.checks.len() < MAX_CHECKS {
                own.add(check)
            } else {
                lost.push(check)
            }
        }
        add(&mut own.protected, asked.protected);
        for check in lost {
            let why = format!("there are {MAX_CHECKS} checks already");
            self.refuse(check.text, &check.from, &why);
        }
        for rule in asked.network.0 {
            if !self.policy.review.network.0.contains(&rule) {
                self.refuse(format!("review.network {rule}"), &rule.from, ONLY_HOST);
            }
        }
    }

    /// Bounds can be lower, and a rule can be switched off.
    fn holding(&mut self, asked: HoldingText) {
        let own = &mut self.policy.holding;
        let usual = crate::holding::USUAL;
        let mut lost = Vec::new();
        for (item, own, asked, usual) in [
            ("max_patch_lines", &mut own.lines, asked.lines, usual.lines),
            ("max_patch_files", &mut own.files, asked.files, usual.files),
            ("max_patch_bytes", &mut own.bytes, asked.bytes, usual.bytes),
        ] {
            let Some(asked) = asked else { continue };
            let now = own.as_ref().map_or(Some(usual), |own| own.most);
            match (asked.most, now) {
                (asked, now) if asked == now => {}
                (Some(most), now) if now.is_none_or(|now| most < now) => *own = Some(asked),
                _ => lost.push((format!("review.{item}"), asked.from, "it can only be lower")),
            }
        }
        match asked.auto_approve {
            None => {}
            Some(AutoText::Off(_)) => own.auto_approve = None,
            Some(AutoText::On(rule)) => {
                lost.push(("review.auto_approve".to_owned(), rule.from, ONLY_HOST));
            }
        }
        for (item, from, why) in lost {
            self.refuse(item, &from, why);
        }
    }

    fn limits(&mut self, asked: Bounds, usual: &Limits) {
        let mut now = usual.clone();
        bound(&mut now, &self.policy.limits);
        for (limit, asked) in asked {
            match (asked.most, now.most(limit)) {
                (asked, now) if asked == now => {}
                (Some(most), now) if now.is_none_or(|now| most < now) => {
                    self.policy.limits.insert(limit, asked);
                }
                _ => {
                    let item = format!("limits.{}", limit.as_str());
                    self.refuse(item, &asked.from, "it can only be lower");
                }
            }
        }
    }
}

impl Narrowing<'_> {
    /// A setup runs in a sandbox: what it is gives nothing of the host, what it reaches does.
    fn environment(&mut self, asked: EnvironmentText) {
        for (item, from) in self.policy.environment.propose(asked) {
            self.refuse(item, &from, ONLY_HOST);
        }
    }
}

impl Narrowing<'_> {
    /// INVARIANT: what the host fetches for a repository is not for that repository to say.
    fn sources(&mut self, asked: Sources) {
        for line in asked.registries {
            if !self.policy.sources.names_registry(&line.text) {
                let item = format!("images.registries {}", line.text);
                self.refuse(item, &line.from, ONLY_HOST);
            }
        }
        for line in asked.repositories {
            let own = &self.policy.sources.repositories;
            if !own.iter().any(|own| own.text == line.text) {
                let item = format!("repositories.hosts {}", line.text);
                self.refuse(item, &line.from, ONLY_HOST);
            }
        }
    }
}

fn add(list: &mut Vec<Line>, more: Vec<Line>) {
    for line in more {
        if !list.iter().any(|own| own.text == line.text) {
            list.push(line);
        }
    }
}

/// What of the second list fits the first, what of the first is inside of the second, and what of
/// the second is neither.
fn common(
    own: Option<Vec<Line>>,
    asked: Vec<Line>,
    fits: impl Fn(&Line) -> bool,
    holds: impl Fn(&str, &str) -> bool,
) -> (Vec<Line>, Vec<Line>) {
    let own = own.unwrap_or_default();
    let (mut kept, mut lost) = (Vec::new(), Vec::new());
    for line in asked {
        if fits(&line) {
            add(&mut kept, vec![line]);
            continue;
        }
        let inside = own.iter().filter(|own| holds(&line.text, &own.text));
        let inside: Vec<Line> = inside.cloned().collect();
        if inside.is_empty() {
            lost.push(line)
        } else {
            add(&mut kept, inside)
        }
    }
    (kept, lost)
}

fn holds(outer: &str, inner: &str) -> bool {
    match (Area::parse(outer), Area::parse(inner)) {
        (Ok(outer), Ok(inner)) => outer.holds(&inner),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
