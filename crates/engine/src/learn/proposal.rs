//! The text of a policy that is proposed.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ringfence_model::host::Host;
use ringfence_model::policy::built_in;
use ringfence_model::policy::network::{Effect, NetworkRule, Origin, Protocol};
use ringfence_model::policy::preset::Preset;

use super::traffic::End;
use super::wants::{Grant, Network, network, reason_is_a_gap};
use super::{Seen, files, limits};

/// BOUND: denied things that are listed; the rest is counted.
const MAX_LISTED: usize = 40;
/// BOUND: names of runs that are listed.
const MAX_NAMES: usize = 12;

/// What becomes of what was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It stands in comments, as a question.
    Listed,
    /// It is granted, where a rule can.
    Included,
}

/// A policy that is proposed.
#[derive(Debug)]
pub struct Proposal {
    /// What `policy check` takes.
    pub text: String,
}

/// Proposes the least policy with which these runs could do again what they did. `resolve` says what
/// a preset is on this host; `None` where it is nothing.
pub fn propose(
    runs: &[Seen],
    denied: Denied,
    resolve: &mut dyn FnMut(&str) -> Option<Preset>,
) -> Proposal {
    let network = network(runs, denied, resolve);
    let files = files::lines(runs);
    let mut text = String::new();
    let names: Vec<String> = runs
        .iter()
        .take(MAX_NAMES)
        .map(|run| tame(&run.name))
        .collect();
    let more = match runs.len().saturating_sub(MAX_NAMES) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    line(
        &mut text,
        format_args!(
            "# Proposed by `ringfence policy learn` from: {}{more}.",
            names.join(", ")
        ),
    );
    line(
        &mut text,
        format_args!(
            "# It is the least with which they could do again what they did. Read it before you use it."
        ),
    );
    line(
        &mut text,
        format_args!(
            "# Which variables they used is not known: see `env.pass` of `{}`.",
            built_in::DEFAULT
        ),
    );
    line(
        &mut text,
        format_args!("extends = \"{}\"", built_in::DEFAULT),
    );
    write_files(&mut text, &files);
    write_network(&mut text, &network);
    if denied == Denied::Listed {
        write_denied(&mut text, runs);
    }
    write_secrets(&mut text, &network);
    let limits = limits::lines(runs);
    if !limits.is_empty() {
        line(
            &mut text,
            format_args!("\n[limits]  # what was used at most, with room"),
        );
        for (name, most) in limits {
            line(&mut text, format_args!("{name} = \"{most}\""));
        }
    }
    Proposal { text }
}

/// Writing to a string does not fail.
fn line(text: &mut String, words: std::fmt::Arguments<'_>) {
    let _ = writeln!(text, "{words}");
}

/// HOSTILE: a path that a person typed, or a name, within a comment.
fn tame(name: &str) -> String {
    let plain = |c: char| c.is_ascii_graphic() || c == ' ';
    name.chars()
        .take(100)
        .map(|c| if plain(c) { c } else { '?' })
        .collect()
}

/// A string of TOML.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

fn list(text: &mut String, name: &str, items: &[String]) {
    line(text, format_args!("{name} = ["));
    for item in items {
        line(text, format_args!("    {},", quoted(item)));
    }
    line(text, format_args!("]"));
}

fn write_files(text: &mut String, files: &files::Lines) {
    line(text, format_args!("\n[files]"));
    for note in &files.notes {
        line(text, format_args!("# {note}"));
    }
    if let Some(areas) = &files.write {
        list(text, "write", areas);
    }
    if let Some(patterns) = &files.export {
        list(text, "export", patterns);
    }
}

fn write_network(text: &mut String, network: &Network) {
    line(text, format_args!("\n[network]"));
    if network.grants.is_empty() {
        line(text, format_args!("allow = []"));
    } else {
        line(text, format_args!("allow = ["));
        for grant in &network.grants {
            let item = grant_item(grant);
            line(text, format_args!("    {item},  # {}", times(grant.times)));
        }
        line(text, format_args!("]"));
    }
    for host in &network.doubled {
        line(
            text,
            format_args!(
                "# `{host}` was answered on this machine: copy its line of `[network.mock]`, or name its address"
            ),
        );
    }
    if network.unsaid > 0 {
        line(
            text,
            format_args!("# {} can be allowed by no line", times(network.unsaid)),
        );
    }
}

fn times(times: u64) -> String {
    match times {
        1 => "once".to_owned(),
        times => format!("{times} times"),
    }
}

fn grant_item(grant: &Grant) -> String {
    let rule = quoted(&grant.rule);
    let is_web = !grant.rule.starts_with("tcp ");
    if grant.addresses.is_empty() || !is_web || names_an_address(&grant.rule) {
        return rule;
    }
    let addresses: Vec<String> = grant
        .addresses
        .iter()
        .map(|a| quoted(&a.to_string()))
        .collect();
    format!(
        "{{ rule = {rule}, addresses = [{}] }}",
        addresses.join(", ")
    )
}

fn names_an_address(rule: &str) -> bool {
    use ringfence_model::host::HostPattern;
    let rule = NetworkRule::parse(Effect::Allow, rule, Origin::default());
    rule.is_ok_and(|rule| {
        rule.protocol == Protocol::Web && matches!(rule.host, HostPattern::Exact(Host::Address(_)))
    })
}

/// What was denied, as lines that a person may take the `#` away from.
fn write_denied(text: &mut String, runs: &[Seen]) {
    let mut lines: BTreeMap<String, (u64, &'static str)> = BTreeMap::new();
    let mut others: BTreeMap<&'static str, u64> = BTreeMap::new();
    for traced in runs.iter().flat_map(|run| &run.network) {
        let End::Denied { reason, allow, .. } = &traced.end else {
            continue;
        };
        let readable =
            |line: &&String| NetworkRule::parse(Effect::Allow, line, Origin::default()).is_ok();
        match allow.as_ref().filter(readable) {
            Some(allow) if reason_is_a_gap(*reason) => {
                let (times, _) = lines.entry(allow.clone()).or_insert((0, reason.as_str()));
                *times += traced.times;
            }
            _ => *others.entry(reason.as_str()).or_default() += traced.times,
        }
    }
    if lines.is_empty() && others.is_empty() {
        return;
    }
    line(
        text,
        format_args!(
            "# Denied, and not granted here. Should any of it be? Then put the line into `allow`:"
        ),
    );
    let more = lines.len().saturating_sub(MAX_LISTED);
    for (rule, (count, reason)) in lines.iter().take(MAX_LISTED) {
        line(
            text,
            format_args!("#   {},  # {}, by {reason}", quoted(rule), times(*count)),
        );
    }
    if more > 0 {
        line(
            text,
            format_args!("#   and {more} more; `ringfence denials` lists them"),
        );
    }
    for (reason, count) in others {
        line(
            text,
            format_args!(
                "#   {} for another reason ({reason}): `ringfence denials` says more",
                times(count)
            ),
        );
    }
}

fn write_secrets(text: &mut String, network: &Network) {
    for (name, hosts) in &network.secrets {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        line(
            text,
            format_args!(
                "# The secret {} was used at {}: copy its `[secrets]` table from the policy that these runs had.",
                tame(name),
                hosts.join(", ")
            ),
        );
    }
}
