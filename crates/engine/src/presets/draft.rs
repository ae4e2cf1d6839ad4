//! A preset while it is put together: what each setting comes to.

use std::collections::BTreeSet;

use ringfence_model::gate::{Index, IndexKind};
use ringfence_model::host::{Host, HostPattern};
use ringfence_model::policy::network::{
    Budget, Effect, NetworkRule, Origin, PathPattern, Protocol, Range, RuleError,
};
use ringfence_model::policy::preset::PREFIX;
use ringfence_model::policy::{SecretRule, SecretSource};

use super::address::{Address, NoAddress};
use super::surroundings::{Setting, Surroundings, Told};
use super::{PresetError, Resolution};

/// Where the hosts of an organisation's own network may lie. Never this machine, its neighbours on
/// the wire, or a service of the cloud for its own machines.
const OWN_NETWORK: &[&str] = &[
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "fc00::/7",
];

/// What is written down so far.
#[derive(Debug)]
pub(super) struct Draft {
    pub preset: &'static str,
    out: Resolution,
    notes: BTreeSet<String>,
}

impl Draft {
    pub fn of(preset: &'static str) -> Self {
        Self {
            preset,
            out: Resolution::default(),
            notes: BTreeSet::new(),
        }
    }

    /// The preset, if it has a host at all.
    pub fn finish(self) -> Result<Resolution, PresetError> {
        if self.out.preset.rules.is_empty() {
            return Err(PresetError::NoHosts {
                preset: self.preset,
            });
        }
        Ok(self.out)
    }

    /// Something that a person should know, once.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if self.notes.insert(text.clone()) {
            self.out.notes.push(text);
        }
    }

    /// A variable for the inside.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.out.preset.env.insert(name.to_owned(), value.into());
    }

    /// The address that a setting names; a note where it names none.
    pub fn address(&mut self, setting: &Setting) -> Option<Address> {
        let from = &setting.from;
        let address = match Address::parse(&setting.value) {
            Ok(address) => address,
            Err(NoAddress::NotWeb) => return None,
            // HOSTILE: what cannot be read may hold a password in an odd place; only its place is
            // named.
            Err(NoAddress::Unreadable) => {
                self.note(format!("{from}: this is no address, and was left out"));
                return None;
            }
        };
        if address.is_this_machine() {
            self.note(format!(
                "{from}: `{}` is this machine, and inside it is the sandbox: left out; \
                 give the service a name, or use `[network.mock]`",
                address.host
            ));
            return None;
        }
        if address.had_credentials {
            self.credentials_left_out(&address.host, from);
        }
        Some(address)
    }

    /// Says that credentials stay on the host, and how the inside can use them.
    pub fn credentials_left_out(&mut self, host: &Host, from: &Origin) {
        self.note(format!(
            "{from}: credentials for `{host}` were left out; to use them, bind them in your own \
             policy file: `[secrets.NAME]` with `from`, `hosts = [\"{host}\"]` and \
             `header = \"Authorization: Bearer {{}}\"` (or `Basic {{}}`)"
        ));
    }

    /// A host that packages are asked for at.
    pub fn index(&mut self, kind: IndexKind, address: &Address, setting: &Setting) {
        self.read_only(address, setting);
        let index = Index {
            kind,
            host: address.host.clone(),
            port: address.port,
            public: address.is_public(),
        };
        let indexes = &mut self.out.preset.indexes;
        let same = |other: &&mut Index| {
            (other.kind, &other.host, other.port) == (index.kind, &index.host, index.port)
        };
        match indexes.iter_mut().find(same) {
            // One setting with a password is enough to keep a host's files apart.
            Some(known) => known.public &= index.public,
            None => indexes.push(index),
        }
    }

    /// Files of this host may be somebody's own.
    pub fn not_public(&mut self, host: &Host) {
        for index in &mut self.out.preset.indexes {
            index.public &= index.host != *host;
        }
    }

    /// A host that may be read from.
    pub fn read_only(&mut self, address: &Address, setting: &Setting) {
        self.add(NetworkRule {
            methods: vec!["GET".to_owned(), "HEAD".to_owned()],
            ..self.rule_for(address, setting)
        });
    }

    /// A git repository that may be cloned and fetched.
    pub fn git(&mut self, address: &Address, setting: &Setting) {
        self.read_only(address, setting);
        let path = PathPattern::parse("/**/git-upload-pack").ok();
        self.add(NetworkRule {
            methods: vec!["POST".to_owned()],
            path,
            ..self.rule_for(address, setting)
        });
    }

    /// An interface that is asked with any method.
    pub fn any_request(&mut self, address: &Address, setting: &Setting) {
        self.add(self.rule_for(address, setting));
    }

    fn rule_for(&self, address: &Address, setting: &Setting) -> NetworkRule {
        let addresses = match setting.told {
            Told::ByDefault => Vec::new(),
            // A mirror that somebody configured may well be inside his own network.
            Told::Configured => OWN_NETWORK
                .iter()
                .filter_map(|range| range.parse::<Range>().ok())
                .collect(),
        };
        NetworkRule {
            effect: Effect::Allow,
            protocol: Protocol::Web,
            methods: Vec::new(),
            host: HostPattern::Exact(address.host.clone()),
            ports: vec![address.port],
            path: None,
            addresses,
            budget: Budget::default(),
            from: self.origin(&setting.from),
        }
    }

    /// A rule of our own, as a person would write it.
    pub fn rule(&mut self, text: &str) -> Result<(), RuleError> {
        let rule = NetworkRule::parse(Effect::Allow, text, self.own_origin())?;
        self.add(rule);
        Ok(())
    }

    fn add(&mut self, rule: NetworkRule) {
        let same = |other: &NetworkRule| {
            (&other.methods, &other.host, &other.ports, &other.path)
                == (&rule.methods, &rule.host, &rule.ports, &rule.path)
        };
        if !self.out.preset.rules.iter().any(same) {
            self.out.preset.rules.push(rule);
        }
    }

    /// A secret that is in a variable of the caller, where it is.
    pub fn secret(
        &mut self,
        surroundings: &Surroundings,
        name: &str,
        hosts: &[HostPattern],
        header: &str,
    ) -> bool {
        let has = surroundings.variable(name).is_some();
        if has {
            self.out.preset.secrets.push(SecretRule {
                name: name.to_owned(),
                source: SecretSource::Env(name.to_owned()),
                hosts: hosts.to_vec(),
                methods: Vec::new(),
                path: None,
                header: header.to_owned(),
                from: self.own_origin(),
            });
        }
        has
    }

    fn own_origin(&self) -> Origin {
        Origin {
            file: format!("{PREFIX}{}", self.preset),
            line: 0,
        }
    }

    fn origin(&self, from: &Origin) -> Origin {
        Origin {
            file: format!("{PREFIX}{} from {}", self.preset, from.file),
            line: from.line,
        }
    }
}
