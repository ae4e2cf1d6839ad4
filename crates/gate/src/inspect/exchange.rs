//! One request from inside, decided and carried out.
//!
//! ```text
//! rules ─▶ budget ─▶ secrets ─▶ cache ─▶ connection, verified ─▶ swap ─▶ request ─▶ answer
//!   └────────┴─────────┴── 403          └─ 502                                        │
//! client ◀──────────────────────────────────────────── searched, counted, learned ◀───┘
//! ```

use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Instant;

use ringfence_model::ByteText;
use ringfence_model::gate::{Happened, Traffic};
use ringfence_model::policy::network::{NetworkRule, Reason};

use super::body::{Incoming, Outgoing};
use super::decide::{budget_denial, decide, misplaced_denial};
use super::pass::Passed;
use super::passage::Conversation;
use super::reply::{Answer, Reply};
use super::request::{Asked, PATIENCE, send};
use super::socket;
use super::upstream::{Pool, Speaks, Upstream, UpstreamError};
use crate::budget::{Meter, UsedUp};
use crate::head::Fields;
use crate::open::{Doing, Register};
use crate::refusal;
use crate::secrets::{Detector, Found, Swaps};
use crate::state::{Denial, Flow};

/// One connection from inside.
pub(crate) struct Visit {
    pub(crate) flow: Flow,
    pub(crate) speaks: Speaks,
    pub(crate) pool: Rc<Pool>,
}

/// What becomes of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Keep,
    Close,
}

/// Why an exchange stopped.
pub(crate) enum Stop {
    Denied(Denial),
    /// The host failed.
    Failed(String),
    /// Nobody knows whether the host saw it: the connection was an old one.
    Stale,
    /// The client went away.
    Gone,
}

impl Stop {
    pub(crate) fn host(flow: &Flow, error: &io::Error) -> Self {
        let host = &flow.host;
        Self::Failed(match error.kind() {
            io::ErrorKind::UnexpectedEof => format!("`{host}` broke off"),
            io::ErrorKind::TimedOut => format!("`{host}` does not answer in time"),
            _ => format!("`{host}` failed: {error}"),
        })
    }

    fn budget(rule: &NetworkRule, up: UsedUp) -> Self {
        Self::Denied(budget_denial(rule, up))
    }
}

impl From<UpstreamError> for Stop {
    fn from(error: UpstreamError) -> Self {
        match error.happened() {
            Happened::Denied { reason, detail, .. } => Self::Denied(Denial::plain(reason, detail)),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// What is known of an exchange so far.
pub(crate) struct Ledger {
    began: Instant,
    pub(crate) sent: Cell<u64>,
    pub(crate) received: Cell<u64>,
    address: Cell<Option<IpAddr>>,
    status: Cell<Option<u16>>,
    used: RefCell<Vec<String>>,
    cached: Cell<bool>,
    /// The host was asked: whatever comes later, this happened.
    asked: Cell<bool>,
    /// The body of the request is on its way.
    sending: Cell<bool>,
}

impl Ledger {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            sent: Cell::default(),
            received: Cell::default(),
            address: Cell::default(),
            status: Cell::default(),
            used: RefCell::default(),
            cached: Cell::default(),
            asked: Cell::default(),
            sending: Cell::default(),
        }
    }

    /// It came out of the cache.
    pub(crate) fn cached(&self, status: u16) {
        self.status.set(Some(status));
        self.cached.set(true);
    }

    /// Whether host and sandbox talk at the same time. Who refuses a request does not read its body.
    pub(crate) fn conversation(&self) -> Conversation {
        let agreed = self.status.get().is_some_and(|status| status / 100 == 2);
        if agreed && self.sending.get() {
            Conversation::GoesOn
        } else {
            Conversation::Over
        }
    }

    fn allowed(&self) -> Happened {
        Happened::Allowed {
            status: self.status.get(),
            sent: self.sent.get(),
            received: self.received.get(),
            duration_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            inspected: true,
            secrets: self.used.borrow().clone(),
            cached: self.cached.get(),
        }
    }
}

/// One exchange.
pub(crate) struct Exchange<'a> {
    pub(crate) visit: &'a Visit,
    pub(crate) asked: Asked,
    pub(crate) rule: NetworkRule,
    pub(crate) meter: Meter,
    pub(crate) ledger: Ledger,
}

/// Says what is thought of a request before a rule is found for it.
pub(crate) async fn refuse(
    visit: &Visit,
    asked: Option<&Asked>,
    denial: &Denial,
    mut reply: Reply<'_>,
    from: &Incoming<'_>,
) -> After {
    let flow = &visit.flow;
    let traffic = with_request(denial.traffic(flow), asked);
    flow.gate.tell(traffic).await;
    if !from.is_over() {
        reply.last();
    }
    let status = match denial.reason {
        Reason::Malformed => 400,
        _ => 403,
    };
    let body = refusal::body(flow, denial);
    let field = [(refusal::DENIED_FIELD, denial.reason.as_str())];
    let answer = Answer::own(status, &body, &field);
    let method = asked.map_or("GET", |asked| &asked.method);
    match reply.send(method, &answer, &body).await {
        Ok(true) => After::Keep,
        // The client may be gone.
        Ok(false) | Err(_) => After::Close,
    }
}

fn with_request(mut traffic: Traffic, asked: Option<&Asked>) -> Traffic {
    if let Some(asked) = asked {
        traffic.method = Some(asked.method.clone());
        let path = asked.target.split('?').next().unwrap_or_default();
        traffic.path = Some(ByteText(path.as_bytes().to_vec()));
    }
    traffic
}

/// Carries out one request, and says what happened.
pub(crate) async fn exchange(
    visit: &Visit,
    mut asked: Asked,
    from: &mut Incoming<'_>,
    reply: Reply<'_>,
) -> After {
    let flow = &visit.flow;
    let gate = &flow.gate;
    let rule = match decide(flow, &asked) {
        Ok(rule) => rule,
        Err(denial) => {
            return refuse(visit, Some(&asked), &denial, reply, from).await;
        }
    };
    let secrets = &gate.inspect.secrets;
    let mut fields = std::mem::take(&mut asked.fields);
    let prepared = secrets
        .prepare(
            &flow.host,
            &asked.method,
            &asked.path,
            &asked.target,
            &mut fields,
        )
        .map_err(|misplaced| {
            let (secret, place) = (misplaced.secret, misplaced.place);
            misplaced_denial(secret, place)
        });
    let swaps = match prepared {
        Ok(swaps) => swaps,
        Err(denial) => {
            return refuse(visit, Some(&asked), &denial, reply, from).await;
        }
    };
    let meter = match gate.budgets.begin(&rule) {
        Ok(meter) => meter,
        Err(up) => {
            let denial = budget_denial(&rule, up);
            return refuse(visit, Some(&asked), &denial, reply, from).await;
        }
    };
    let own = Exchange {
        visit,
        asked,
        rule,
        meter,
        ledger: Ledger::new(),
    };
    for field in &swaps.stripped {
        let field = field.clone();
        own.tell(Happened::Stripped { field }).await;
    }
    own.carry_out(from, reply, fields, &swaps).await
}

impl Exchange<'_> {
    pub(crate) fn flow(&self) -> &Flow {
        &self.visit.flow
    }

    pub(crate) async fn tell(&self, happened: Happened) {
        let mut traffic = self.flow().traffic(Some(&self.rule), happened);
        traffic.address = self.ledger.address.get();
        let traffic = with_request(traffic, Some(&self.asked));
        self.flow().gate.tell(traffic).await;
    }

    async fn carry_out(
        &self,
        from: &mut Incoming<'_>,
        reply: Reply<'_>,
        fields: Fields,
        swaps: &Swaps,
    ) -> After {
        let flow = self.flow();
        let doing = Doing::Request {
            method: self.asked.method.clone(),
            path: self.asked.path.clone(),
        };
        let held = Register::add(&flow.gate, &flow.host, flow.port, doing);
        let mut reply = Some(reply);
        let result = tokio::select! {
            biased;
            () = held.revoked() => Err(self.revoked()),
            up = self.meter.over() => Err(Stop::budget(&self.rule, up)),
            result = self.attempts(from, &mut reply, fields, swaps) => result,
        };
        match result {
            Ok(after) => {
                self.tell(self.ledger.allowed()).await;
                if from.is_over() { after } else { After::Close }
            }
            Err(stop) => {
                self.stopped(stop, reply, from).await;
                After::Close
            }
        }
    }

    fn revoked(&self) -> Stop {
        // Nobody denies what is cut because the sandbox ends.
        if self.flow().gate.open.is_closed() && self.ledger.asked.get() {
            return Stop::Gone;
        }
        let detail = "the rules changed, or the sandbox ends";
        Stop::Denied(Denial::plain(Reason::Rule, detail))
    }

    async fn attempts(
        &self,
        from: &mut Incoming<'_>,
        reply: &mut Option<Reply<'_>>,
        fields: Fields,
        swaps: &Swaps,
    ) -> Result<After, Stop> {
        let artefact = self.artefact(&fields);
        let mut fields = fields;
        if let (Some(url), Some(cache)) = (&artefact, &self.flow().gate.inspect.cache) {
            if let Some(hit) = cache.find(url).await {
                return self.give(hit, reply).await;
            }
            fields = Self::plain_fields();
        }
        let artefact = artefact.as_deref();
        let pool = &self.visit.pool;
        let (flow, speaks) = (self.flow(), self.visit.speaks);
        let upstream = tokio::select! {
            upstream = pool.get(flow, &self.rule, speaks) => upstream?,
            () = unwanted(reply) => return Err(Stop::Gone),
        };
        match self
            .attempt(upstream, from, reply, fields.clone(), swaps, artefact)
            .await
        {
            Err(Stop::Stale) => {}
            result => return result,
        }
        let upstream = tokio::select! {
            upstream = pool.fresh(flow, &self.rule, speaks) => upstream?,
            () = unwanted(reply) => return Err(Stop::Gone),
        };
        self.attempt(upstream, from, reply, fields, swaps, artefact)
            .await
    }

    /// Whether a request that was perhaps not seen may be sent again.
    fn may_repeat(&self, from: &Incoming<'_>) -> bool {
        from.is_over() && matches!(self.asked.method.as_str(), "GET" | "HEAD" | "OPTIONS")
    }

    async fn attempt(
        &self,
        mut upstream: Upstream,
        from: &mut Incoming<'_>,
        reply: &mut Option<Reply<'_>>,
        mut fields: Fields,
        swaps: &Swaps,
        artefact: Option<&str>,
    ) -> Result<After, Stop> {
        let flow = self.flow();
        let gate = &flow.gate;
        let double = gate.mock(&flow.host).is_some();
        let secure = self.visit.speaks != Speaks::Plain;
        self.ledger.address.set(Some(upstream.address()));
        // INVARIANT: values go only to hosts that proved who they are, or to a double that the
        // policy itself names.
        if !swaps.is_empty() && !secure && !double {
            let detail = "a secret is not sent without TLS";
            return Err(Stop::Denied(Denial::plain(Reason::Secret, detail)));
        }
        self.ask_readably(&mut fields);
        let needles = gate.inspect.secrets.values_for(&flow.host);
        if needles.is_some() {
            // What comes back is to be readable, and whole.
            fields.set("Accept-Encoding", b"identity");
            for name in ["a-im", "sec-websocket-extensions"] {
                fields.remove(name);
            }
        }
        let used = gate.inspect.secrets.swap(swaps, &mut fields);
        self.ledger.used.replace(used);
        let old = matches!(&upstream, Upstream::One(one) if one.used);
        let repeat = old && self.may_repeat(from);
        let stop = |error: io::Error| {
            if repeat {
                Stop::Stale
            } else {
                Stop::host(flow, &error)
            }
        };
        self.ledger.asked.set(true);
        self.ledger.sending.set(!from.is_over());
        let (answered, whole) = {
            let (mut out, awaiting) = send(&mut upstream, flow, &self.asked, &mut fields, secure)
                .await
                .map_err(stop)?;
            if self.asked.expects
                && let Some(reply) = reply
            {
                reply.go_on().await.map_err(|_| Stop::Gone)?;
            }
            let pump = self.pump(from, &mut out);
            tokio::pin!(pump);
            // `None`: the body of the request is still on its way.
            let mut whole = None;
            let answer = awaiting.answer(&self.asked.method);
            tokio::pin!(answer);
            let came = loop {
                tokio::select! {
                    came = &mut answer => break came.map_err(stop)?,
                    // What is not awaited any more frees what the host has of it.
                    () = unwanted(reply) => return Err(Stop::Gone),
                    result = &mut pump, if whole.is_none() => whole = Some(result?),
                }
            };
            self.ledger.status.set(Some(came.answer.status));
            if came.answer.status == 101 {
                (Answered::Socket(came.answer), whole)
            } else {
                let passing = self.pass(came, reply, needles, artefact);
                tokio::pin!(passing);
                let passed = loop {
                    tokio::select! {
                        passed = &mut passing => break passed?,
                        result = &mut pump, if whole.is_none() => whole = Some(result?),
                    }
                };
                (Answered::Passed(passed), whole)
            }
        };
        match (answered, upstream) {
            (Answered::Socket(answer), Upstream::One(one)) if self.asked.socket => {
                socket::tunnel(self, answer, *one, from, reply, needles).await
            }
            (Answered::Socket(_), _) => {
                let detail = format!("`{}` changes the protocol unasked", flow.host);
                Err(Stop::Failed(detail))
            }
            (Answered::Passed(passed), upstream) => {
                if let Upstream::One(one) = upstream
                    && passed.upstream == After::Keep
                    && whole == Some(true)
                {
                    self.visit.pool.keep(flow, self.visit.speaks, one);
                }
                Ok(passed.client)
            }
        }
    }

    /// Passes on the body of the request. `false`: the host takes no more of it.
    async fn pump(&self, from: &mut Incoming<'_>, out: &mut Outgoing<'_>) -> Result<bool, Stop> {
        let secrets = &self.flow().gate.inspect.secrets;
        // Nothing is held back of what the sandbox sends: the beginning of a placeholder does no harm, and a host that
        // is to answer each message gets it at once.
        let mut search = secrets.placeholders().map(Detector::new);
        loop {
            let piece = tokio::time::timeout(PATIENCE, from.piece()).await;
            let piece = piece.map_err(|_| Stop::Gone)?.map_err(|_| Stop::Gone)?;
            let Some(piece) = piece else {
                self.ledger.sending.set(false);
                // Trailers of requests are not passed on.
                return Ok(out.end(None).await.is_ok());
            };
            let found = search.as_mut().map(|search| search.piece(&piece));
            let found = found.unwrap_or_default();
            let foreign = |found: &&Found| !secrets.is_for_host(**found, &self.flow().host);
            if let Some(found) = found.iter().find(foreign) {
                let denial = misplaced_denial(secrets.name(*found), "body");
                return Err(Stop::Denied(denial));
            }
            self.send_counted(piece.len())?;
            if out.piece(piece).await.is_err() {
                return Ok(false);
            }
        }
    }

    /// Counts what goes to the host.
    pub(crate) fn send_counted(&self, length: usize) -> Result<(), Stop> {
        let length = length as u64;
        let budget = |up| Stop::budget(&self.rule, up);
        if length > 0 && self.meter.may_send().map_err(budget)? < length {
            let most = self.rule.budget.upload_bytes.unwrap_or(0);
            return Err(budget(UsedUp::Upload(most)));
        }
        self.meter.sent(length);
        self.ledger.sent.set(self.ledger.sent.get() + length);
        Ok(())
    }

    /// Counts what came from the host.
    pub(crate) fn received(&self, length: usize) -> Result<(), Stop> {
        let length = length as u64;
        let budget = |up| Stop::budget(&self.rule, up);
        if length > 0 && self.meter.may_receive().map_err(budget)? < length {
            let most = self.rule.budget.download_bytes.unwrap_or(0);
            return Err(budget(UsedUp::Download(most)));
        }
        self.meter.received(length);
        self.ledger
            .received
            .set(self.ledger.received.get() + length);
        Ok(())
    }

    async fn stopped(&self, stop: Stop, reply: Option<Reply<'_>>, from: &Incoming<'_>) {
        // INVARIANT: what reached a host is said with its bytes, its address and its secrets; why it
        // was cut is said beside that.
        if self.ledger.asked.get() && !matches!(stop, Stop::Gone) {
            self.tell(self.ledger.allowed()).await;
        }
        match (stop, reply) {
            (Stop::Denied(denial), Some(mut reply)) => {
                reply.last();
                refuse(self.visit, Some(&self.asked), &denial, reply, from).await;
            }
            (Stop::Denied(denial), None) => self.tell(denial.happened()).await,
            (Stop::Gone, _) => self.tell(self.ledger.allowed()).await,
            (Stop::Stale, reply) => {
                let detail = format!("`{}` broke off", self.flow().host);
                self.failed(detail, reply).await;
            }
            (Stop::Failed(detail), reply) => self.failed(detail, reply).await,
        }
    }

    async fn failed(&self, detail: String, reply: Option<Reply<'_>>) {
        // HOSTILE: errors of a connection quote what the host said.
        let detail = self.flow().gate.inspect.secrets.scrub(detail);
        let body = refusal::failed_body(self.flow(), &detail);
        self.tell(Happened::Failed { detail }).await;
        if let Some(mut reply) = reply {
            reply.last();
            let answer = Answer::own(502, &body, &[]);
            // The client may be gone.
            reply.send(&self.asked.method, &answer, &body).await.ok();
        }
    }
}

async fn unwanted(reply: &mut Option<Reply<'_>>) {
    match reply {
        Some(reply) => reply.unwanted().await,
        None => std::future::pending().await,
    }
}

/// What came of a request.
enum Answered {
    Passed(Passed),
    /// The host agrees to a web socket.
    Socket(Answer),
}
