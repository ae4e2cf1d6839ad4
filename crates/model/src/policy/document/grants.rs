//! The parts of a file that open something: the network and secrets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use super::super::network::{
    Budget, Effect, NetworkRule, PathPattern, Protocol, Range, RuleError, read_methods,
};
use super::super::{SecretRule, SecretSource, preset};
use super::reader::{Reader, Value};
use super::{Document, Grant, host_path, variable_name};
use crate::gate::Mock;
use crate::host::{Host, HostPattern};
use crate::limits::{parse_duration_seconds, parse_size};

/// How a secret stands in a request where the policy does not say.
const HEADER: &str = "Authorization: Bearer {}";

impl Document {
    pub(super) fn read_network<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        for (key, value) in reader.keys(table, &["allow", "deny", "cache", "mock"]) {
            match key {
                "allow" => {
                    self.allow = Some(read(reader, value));
                }
                "deny" => {
                    for item in reader.array(value) {
                        self.deny.extend(denial(reader, item));
                    }
                }
                "cache" => {
                    let from = reader.origin(&value.span());
                    self.cache = reader.boolean(value).map(|cache| (cache, from));
                }
                _ => self.read_mocks(reader, value),
            }
        }
    }

    fn read_mocks<'t>(&mut self, reader: &mut Reader<'t>, value: &Value<'t>) {
        let Some(table) = reader.table(value) else {
            return;
        };
        for (key, value) in table {
            let host = Host::parse(key.get_ref())
                .map_err(|why| format!("`{}` is no host: {why}", key.get_ref()));
            let host = reader.keep(key.span(), host);
            let to = reader.string(value).map(double);
            let to = to.and_then(|to| reader.keep(value.span(), to));
            if let (Some(host), Some(to)) = (host, to) {
                let from = reader.origin(&key.span());
                self.mocks.push((Mock { host, to }, from));
            }
        }
    }

    pub(super) fn read_secrets<'t>(
        &mut self,
        reader: &mut Reader<'t>,
        value: &Value<'t>,
        home: Option<&Path>,
    ) {
        let Some(table) = reader.table(value) else {
            return;
        };
        for (key, value) in table {
            let name = key.get_ref().to_string();
            if reader.keep(key.span(), variable_name(&name)).is_some() {
                self.secrets.extend(secret(reader, name, value, home));
            }
        }
    }
}

/// A list of rules and presets.
pub(super) fn read<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Vec<Grant> {
    let mut grants = Vec::new();
    for item in reader.array(value) {
        grants.extend(grant(reader, item));
    }
    grants
}

fn grant<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<Grant> {
    if let Some(text) = value.get_ref().as_str()
        && let Some(name) = text.strip_prefix(preset::PREFIX)
    {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
            reader.wrong(value.span(), "a preset is `preset:NAME`");
            return None;
        }
        let mut line = reader.line(value)?;
        line.text = name.to_owned();
        return Some(Grant::Preset(line));
    }
    rule(reader, Effect::Allow, value).map(Grant::Rule)
}

/// A rule that allows, written out.
pub(super) fn allowed<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<NetworkRule> {
    rule(reader, Effect::Allow, value)
}

fn denial<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<NetworkRule> {
    let rule = rule(reader, Effect::Deny, value)?;
    if rule.budget != Budget::default() || !rule.addresses.is_empty() {
        reader.wrong(
            value.span(),
            "a rule that denies has no addresses and no budget",
        );
        return None;
    }
    Some(rule)
}

/// A rule: a string, or a table with its budget.
fn rule<'t>(reader: &mut Reader<'t>, effect: Effect, value: &Value<'t>) -> Option<NetworkRule> {
    let from = reader.origin(&value.span());
    if value.get_ref().is_str() {
        let parsed = NetworkRule::parse(effect, reader.string(value)?, from);
        return reader.keep(value.span(), parsed);
    }
    let Some(table) = value.get_ref().as_table() else {
        reader.wrong(value.span(), "a rule is a string, or a table with `rule`");
        return None;
    };
    let keys = [
        "rule",
        "addresses",
        "per_minute",
        "upload",
        "download",
        "time",
    ];
    let mut rule = None;
    let mut addresses = Vec::new();
    let mut budget = Budget::default();
    for (key, value) in reader.keys(table, &keys) {
        match key {
            "rule" => {
                let text = reader.string(value)?;
                let parsed = NetworkRule::parse(effect, text, from.clone());
                rule = Some(reader.keep(value.span(), parsed)?);
            }
            "addresses" => {
                for item in reader.array(value) {
                    let parsed = reader.string(item)?.parse::<Range>();
                    addresses.extend(reader.keep(item.span(), parsed));
                }
            }
            "per_minute" => budget.per_minute = reader.quantity(value, per_minute)?.map(bounded),
            "upload" => budget.upload_bytes = reader.quantity(value, parse_size)?,
            "download" => budget.download_bytes = reader.quantity(value, parse_size)?,
            _ => budget.seconds = reader.quantity(value, parse_duration_seconds)?,
        }
    }
    let Some(mut rule) = rule else {
        reader.wrong(value.span(), "a rule in a table is in `rule`");
        return None;
    };
    if rule.protocol == Protocol::Web && rule.host == HostPattern::AnyName && !addresses.is_empty()
    {
        reader.wrong(value.span(), "`addresses` goes with a host that is named");
        return None;
    }
    rule.addresses = addresses;
    rule.budget = budget;
    Some(rule)
}

fn per_minute(text: &str) -> Result<Option<u64>, &'static str> {
    match text.parse::<u32>() {
        Ok(count) if count > 0 => Ok(Some(u64::from(count))),
        _ => Err("a count above 0 is meant"),
    }
}

fn bounded(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// `http://127.0.0.1:9000`.
fn double(text: &str) -> Result<SocketAddr, &'static str> {
    let error = "a double is `http://ADDRESS:PORT` on this host";
    let place = text.strip_prefix("http://").ok_or(error)?;
    let place = place.strip_suffix('/').unwrap_or(place);
    let to = match place.strip_prefix("localhost:") {
        Some(port) => port
            .parse()
            .map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
            .map_err(|_| error)?,
        None => place.parse().map_err(|_| error)?,
    };
    if to.ip().is_loopback() && to.port() != 0 {
        Ok(to)
    } else {
        Err(error)
    }
}

fn secret<'t>(
    reader: &mut Reader<'t>,
    name: String,
    value: &Value<'t>,
    home: Option<&Path>,
) -> Option<SecretRule> {
    let table = reader.table(value)?;
    let keys = ["from", "hosts", "methods", "path", "header"];
    let before = reader.problems.len();
    let mut source = None;
    let mut rule = SecretRule {
        name,
        source: SecretSource::Env(String::new()),
        hosts: Vec::new(),
        methods: Vec::new(),
        path: None,
        header: HEADER.to_owned(),
        from: reader.origin(&value.span()),
    };
    for (key, value) in reader.keys(table, &keys) {
        match key {
            "from" => {
                let text = reader.string(value)?;
                source = Some(reader.keep(value.span(), SecretSource::parse(text, home))?);
                rule.from = reader.origin(&value.span());
            }
            "hosts" => {
                for line in reader.lines(value, secret_host) {
                    rule.hosts.extend(HostPattern::parse(&line.text));
                }
            }
            "methods" => {
                let lines = reader.lines(value, method);
                rule.methods = lines.into_iter().map(|line| line.text).collect();
            }
            "path" => {
                let parsed = PathPattern::parse(reader.string(value)?);
                rule.path = Some(reader.keep(value.span(), parsed)?);
            }
            _ => {
                let text = reader.string(value)?.to_owned();
                reader.keep(value.span(), header(&text))?;
                rule.header = text;
            }
        }
    }
    let Some(source) = source else {
        reader.wrong(
            value.span(),
            "a secret has `from`: `env:`, `file:` or `command:`",
        );
        return None;
    };
    // A host that is none was told already.
    if rule.hosts.is_empty() && reader.problems.len() == before {
        reader.wrong(value.span(), "a secret has `hosts`, which may see it");
    }
    rule.source = source;
    Some(rule)
}

impl SecretSource {
    /// Reads `env:NAME`, `file:PATH` or `command:LINE`. `home` is what `~/` is.
    pub fn parse(text: &str, home: Option<&Path>) -> Result<Self, String> {
        let meant = "`env:NAME`, `file:PATH` or `command:LINE` is meant".to_owned();
        match text.split_once(':') {
            Some(("env", name)) => variable_name(name).map(|()| Self::Env(name.to_owned())),
            Some(("file", path)) => Ok(Self::File(host_path(path, home)?)),
            Some(("command", line)) if !line.trim().is_empty() => {
                Ok(Self::Command(line.to_owned()))
            }
            _ => Err(meant),
        }
    }
}

/// A secret goes to who is named, not to everybody.
fn secret_host(text: &str) -> Result<(), String> {
    match HostPattern::parse(text) {
        Ok(HostPattern::AnyName) => Err("a secret is bound to hosts that are named".to_owned()),
        Ok(_) => Ok(()),
        Err(why) => Err(format!("`{text}` is no host: {why}")),
    }
}

fn method(text: &str) -> Result<(), RuleError> {
    match read_methods(text)?.len() {
        1 => Ok(()),
        _ => Err(RuleError::Method(text.to_owned())),
    }
}

fn header(text: &str) -> Result<(), &'static str> {
    let error = "a header is `Name: value` with one `{}` in its value, where the secret stands";
    let (name, value) = text.split_once(':').ok_or(error)?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let visible = |byte: u8| (0x20..0x7f).contains(&byte);
    let fine = !name.is_empty()
        && name.bytes().all(token)
        && value.bytes().all(visible)
        && value.matches("{}").count() == 1;
    fine.then_some(()).ok_or(error)
}
