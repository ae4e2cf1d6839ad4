//! What all connections of a gate share.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use ringfence_model::ByteText;
use ringfence_model::gate::{Happened, SecretValue, Setup, Traffic, Via};
use ringfence_model::host::Host;
use ringfence_model::policy::network::{NetworkRule, Protocol, Reason, Rules, Verdict, WEB_PORTS};
use tokio::sync::Semaphore;

use crate::budget::Budgets;
use crate::guest::Guest;
use crate::inspect;
use crate::names::Names;
use crate::open::Register;
use crate::resolve::Resolver;
use crate::words::Words;

/// BOUND: rules that answers of indexes add.
const MAX_LEARNED: usize = 256;
/// BOUND: connections from inside at a time. The figure to hold is 500.
const MAX_CONNECTIONS: usize = 1024;
/// BOUND: what is shown of something that names no host.
const MAX_SHOWN: usize = 256;

/// One gate. There is one thread; nothing borrows across a wait.
pub(crate) struct Gate {
    pub(crate) setup: Setup,
    pub(crate) words: Words,
    pub(crate) open: Register,
    pub(crate) budgets: Budgets,
    pub(crate) inspect: inspect::State,
    pub(crate) guest: Guest,
    pub(crate) names: Names,
    pub(crate) resolver: Resolver,
    /// One for each connection from inside.
    pub(crate) seats: Arc<Semaphore>,
    rules: RefCell<Rc<Rules>>,
    /// Rules as the engine gave them.
    given: RefCell<Rules>,
    learned: RefCell<Vec<Learned>>,
}

/// A rule that an index's own answer made.
struct Learned {
    index: Host,
    rule: NetworkRule,
}

impl Gate {
    pub(crate) fn new(
        mut setup: Setup,
        values: Vec<SecretValue>,
        trust: inspect::Trust,
        words: Words,
        guest: Guest,
    ) -> std::io::Result<Self> {
        let inspect = inspect::State::new(&setup, values, trust)?;
        let given = std::mem::take(&mut setup.rules);
        let gate = Self {
            resolver: Resolver::new(&setup.name_servers),
            setup,
            words,
            guest,
            names: Names::default(),
            seats: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            open: Register::default(),
            budgets: Budgets::default(),
            inspect,
            rules: RefCell::default(),
            given: RefCell::new(given),
            learned: RefCell::default(),
        };
        gate.merge();
        Ok(gate)
    }

    /// The rules that hold now. Whoever waits asks again afterwards.
    pub(crate) fn rules(&self) -> Rc<Rules> {
        self.rules.borrow().clone()
    }

    /// New rules hold at once. Answers how many open connections they closed.
    pub(crate) fn change(&self, rules: Rules) -> u64 {
        self.given.replace(rules);
        self.merge();
        self.open.close_denied(self)
    }

    /// Adds what an index's answer names, while the index itself is allowed. `true`: it is new.
    pub(crate) fn learn(&self, index: &Host, rule: NetworkRule) -> bool {
        {
            let mut learned = self.learned.borrow_mut();
            let known = learned.iter().any(|known| known.rule == rule);
            if known || learned.len() >= MAX_LEARNED {
                return false;
            }
            learned.push(Learned {
                index: index.clone(),
                rule,
            });
        }
        self.merge();
        true
    }

    fn merge(&self) {
        let given = self.given.borrow();
        let mut rules = given.0.clone();
        self.learned
            .borrow_mut()
            .retain(|learned| !given.ports(&learned.index).is_empty());
        rules.extend(self.learned.borrow().iter().map(|own| own.rule.clone()));
        self.rules.replace(Rc::new(Rules(rules)));
    }

    /// The double that answers for a host.
    pub(crate) fn mock(&self, host: &Host) -> Option<SocketAddr> {
        let own = self.setup.mocks.iter().find(|mock| mock.host == *host);
        own.map(|mock| mock.to)
    }

    /// Whether each request to this host must be seen.
    ///
    /// INVARIANT: where this is true no connection is passed on unread, whatever its first bytes
    /// are and whenever they come.
    pub(crate) fn looks_inside(&self, host: &Host, port: u16) -> bool {
        let rules = self.rules();
        if rules.looks_inside(host, port) || self.mock(host).is_some() {
            return true;
        }
        let web = matches!(
            rules.connection(host, port),
            Verdict::Allow(rule) if rule.protocol == Protocol::Web
        );
        let secret = || {
            let mut bound = self.setup.secrets.iter().flat_map(|own| &own.hosts);
            bound.any(|pattern| pattern.matches(host))
        };
        let index = || {
            let mut indexes = self.setup.indexes.iter();
            indexes.any(|index| index.host == *host && index.port == port)
        };
        web && (secret() || index())
    }

    /// Says what happened. Waits while the engine does not keep up.
    pub(crate) async fn tell(&self, traffic: Traffic) {
        self.words.tell(traffic).await;
    }
}

/// Something inside that wants to reach a host.
#[derive(Clone)]
pub(crate) struct Flow {
    pub(crate) gate: Rc<Gate>,
    pub(crate) via: Via,
    pub(crate) host: Host,
    pub(crate) port: u16,
}

impl Flow {
    /// What the rules say of the connection, with a copy of the rule that says it.
    pub(crate) fn connection(&self) -> Result<NetworkRule, Denial> {
        match self.gate.rules().connection(&self.host, self.port) {
            Verdict::Allow(rule) => Ok(rule.clone()),
            Verdict::Deny { reason, rule } => Err(Denial::of(reason, rule, self)),
        }
    }

    /// The line that would allow the connection.
    pub(crate) fn line(&self, protocol: Protocol) -> String {
        Rules::line_for(&self.host, self.port, protocol)
    }

    /// What is likely spoken where no rule says it: at ports of the web, the web.
    fn likely(&self) -> Protocol {
        if WEB_PORTS.contains(&self.port) || self.via == Via::Name {
            Protocol::Web
        } else {
            Protocol::Tcp
        }
    }

    /// What is said of this, by a rule or by none.
    pub(crate) fn traffic(&self, rule: Option<&NetworkRule>, result: Happened) -> Traffic {
        Traffic {
            via: self.via,
            host: ByteText(self.host.to_string().into_bytes()),
            port: self.port,
            protocol: rule.map_or(self.likely(), |rule| rule.protocol),
            method: None,
            path: None,
            address: None,
            result,
            rule: rule.map(ToString::to_string),
            from: rule.map(|rule| rule.from.to_string()),
            times: 1,
        }
    }
}

/// Why something is refused, and what would allow it.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    pub(crate) reason: Reason,
    pub(crate) detail: String,
    /// The rule line that would allow it.
    pub(crate) allow: Option<String>,
    /// The rule that denies, where one does.
    pub(crate) rule: Option<Box<NetworkRule>>,
}

impl Denial {
    /// A refusal that no rule line changes.
    pub(crate) fn plain(reason: Reason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            allow: None,
            rule: None,
        }
    }

    fn of(reason: Reason, rule: Option<&NetworkRule>, flow: &Flow) -> Self {
        let (host, port) = (&flow.host, flow.port);
        let detail = match (reason, rule) {
            (_, Some(rule)) => format!("`deny {rule}` ({}) forbids it", rule.from),
            (Reason::Port, None) => format!("no rule allows port {port} of `{host}`"),
            (_, None) => format!("no rule allows `{host}`"),
        };
        Self {
            reason,
            detail,
            allow: rule.is_none().then(|| flow.line(flow.likely())),
            rule: rule.cloned().map(Box::new),
        }
    }

    pub(crate) fn happened(&self) -> Happened {
        Happened::Denied {
            reason: self.reason,
            detail: self.detail.clone(),
            allow: self.allow.clone(),
        }
    }

    pub(crate) fn traffic(&self, flow: &Flow) -> Traffic {
        flow.traffic(self.rule.as_deref(), self.happened())
    }

    /// The same for what names no host. HOSTILE: `asked` is shown as it came.
    pub(crate) fn of_unread(&self, via: Via, asked: &[u8]) -> Traffic {
        Traffic {
            via,
            host: ByteText(asked[..asked.len().min(MAX_SHOWN)].to_vec()),
            port: 0,
            protocol: Protocol::Web,
            method: None,
            path: None,
            address: None,
            result: self.happened(),
            rule: None,
            from: None,
            times: 1,
        }
    }
}
