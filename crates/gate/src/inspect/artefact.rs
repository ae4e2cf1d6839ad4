//! What is done beside passing on an answer: an index's answer is read for the hosts that it names,
//! and an artefact is kept for other sandboxes.

use std::cell::RefCell;
use std::collections::BTreeSet;

use ringfence_model::gate::IndexKind;
use ringfence_model::host::Host;

use super::exchange::{After, Exchange, Stop};
use super::pass::put;
use super::reply::{Answer, Reply};
use super::upstream::Speaks;
use crate::cache::{Cache, Hit, Keeping, is_immutable};
use crate::head::{Fields, Framing};
use crate::index::{self, Named, Reading, index_of, names_hosts};
use crate::secrets::is_credential;
use crate::state::Flow;

/// A host that files of an index come from.
#[derive(Clone)]
struct Source {
    place: Named,
    kind: IndexKind,
    index: Host,
    public: bool,
    /// It is the index itself.
    own: bool,
}

/// Hosts that indexes named while this gate runs.
#[derive(Default)]
pub(crate) struct Sources(RefCell<Vec<Source>>);

impl Sources {
    fn of(&self, flow: &Flow) -> Option<Source> {
        let place = Named {
            host: flow.host.clone(),
            port: flow.port,
        };
        if let Some(index) = index_of(flow) {
            return Some(Source {
                place,
                kind: index.kind,
                index: index.host.clone(),
                public: index.public,
                own: true,
            });
        }
        let all = self.0.borrow();
        all.iter().find(|own| own.place == place).cloned()
    }
}

/// What happens beside one answer.
pub(crate) struct Beside {
    pub(crate) reading: Option<Reading>,
    keeping: Option<Keeping>,
}

impl Beside {
    pub(crate) fn piece(&mut self, piece: &[u8]) {
        if let Some(reading) = &mut self.reading {
            reading.piece(piece);
        }
        let keeping = self.keeping.take();
        self.keeping = keeping.and_then(|keeping| keeping.piece(piece));
    }

    /// All of it came.
    pub(crate) async fn keep(self, cache: Option<&Cache>) {
        if let (Some(keeping), Some(cache)) = (self.keeping, cache) {
            // That it cannot be kept is no reason to fail: it is fetched again.
            keeping.end(cache).await.ok();
        }
    }
}

impl Exchange<'_> {
    fn source(&self) -> Option<Source> {
        let flow = self.flow();
        let double = flow.gate.mock(&flow.host).is_some();
        flow.gate.inspect.sources.of(flow).filter(|_| !double)
    }

    /// The URL of an artefact that may come from the cache, and go there.
    pub(crate) fn artefact(&self, fields: &Fields) -> Option<String> {
        let flow = self.flow();
        let (target, path) = (&self.asked.target, self.asked.path.as_str());
        let source = self.source().filter(|source| source.public)?;
        let plain = self.visit.speaks == Speaks::Plain;
        let conditional = ["range", "if-range", "if-match", "if-unmodified-since"];
        let own = flow.gate.inspect.cache.is_some()
            && self.asked.method == "GET"
            && self.asked.framing == Framing::None
            && !target.contains('?')
            && is_immutable(source.kind, path)
            // In the clear only where the policy itself says so.
            && (!plain || source.own)
            && !flow.gate.inspect.secrets.bound_to(&flow.host)
            && !fields.iter().any(|(name, _)| is_credential(name))
            && !conditional.iter().any(|name| fields.has(name));
        let scheme = if plain { "http" } else { "https" };
        own.then(|| format!("{scheme}://{}:{}{target}", flow.host, flow.port))
    }

    /// The fields with which artefacts are fetched for all sandboxes: none that this one chose.
    pub(crate) fn plain_fields() -> Fields {
        let mut fields = Fields::default();
        for (name, value) in [
            ("Accept", "*/*"),
            ("Accept-Encoding", "identity"),
            ("User-Agent", "ringfence"),
        ] {
            // These are plain text.
            fields.push(name, value.as_bytes());
        }
        fields
    }

    /// Makes an index answer in a way that can be read, and in full.
    pub(crate) fn ask_readably(&self, fields: &mut Fields) {
        let path = self.asked.path.as_str();
        let fits = |source: &Source| {
            source.own && names_hosts(source.kind) && !is_immutable(source.kind, path)
        };
        if self.source().is_none_or(|source| !fits(&source)) {
            return;
        }
        let gzip = fields
            .all("accept-encoding")
            .any(|value| value.windows(4).any(|four| four == b"gzip"));
        fields.set("Accept-Encoding", if gzip { b"gzip" } else { b"identity" });
        for name in ["if-none-match", "if-modified-since", "range", "if-range"] {
            fields.remove(name);
        }
    }

    /// What is to be done beside passing on this answer.
    pub(crate) fn beside(&self, answer: &Answer, artefact: Option<&str>) -> Beside {
        let fields = &answer.fields;
        let whole = self.asked.method == "GET" && answer.status == 200;
        let reading = self
            .source()
            .filter(|source| whole && source.own)
            .and_then(|source| {
                let held = &self.flow().gate.inspect.held;
                Reading::new(source.kind, &self.asked.path, fields, held)
            });
        let private = ["no-store", "private"]
            .iter()
            .any(|word| fields.has_word("cache-control", word));
        let keeping = artefact
            .filter(|_| whole && !private && !fields.has("content-encoding"))
            .zip(answer.length)
            .and_then(|(url, length)| {
                let content = fields.once("content-type");
                let content = content.and_then(|own| String::from_utf8(own.to_vec()).ok());
                let cache = self.flow().gate.inspect.cache.as_ref()?;
                cache.keep(url.to_owned(), length, content)
            });
        Beside { reading, keeping }
    }

    /// Where an index sends clients on for a file, files come from.
    pub(crate) async fn learn_redirect(&self, answer: &Answer) {
        let Some(source) = self.source() else { return };
        let on = matches!(answer.status, 301 | 302 | 303 | 307 | 308);
        let location = answer.fields.once("location");
        let location = location.and_then(|own| std::str::from_utf8(own).ok());
        if on
            && is_immutable(source.kind, self.asked.path.as_str())
            && let Some(named) = location.and_then(index::place_of)
        {
            self.learn(BTreeSet::from([named])).await;
        }
    }

    /// Allows what an index named.
    pub(crate) async fn learn(&self, named: BTreeSet<Named>) {
        let (flow, Some(source)) = (self.flow(), self.source()) else {
            return;
        };
        let learned = index::learn(flow, &source.index, &self.rule, named).await;
        let mut sources = flow.gate.inspect.sources.0.borrow_mut();
        for place in learned {
            sources.push(Source {
                place,
                own: false,
                ..source.clone()
            });
        }
    }

    /// Answers with what was kept. Nothing is asked outside.
    pub(crate) async fn give(
        &self,
        mut hit: Hit,
        reply: &mut Option<Reply<'_>>,
    ) -> Result<After, Stop> {
        let mut fields = Fields::default();
        if let Some(content) = &hit.content_type {
            fields.push("Content-Type", content.as_bytes());
        }
        let answer = Answer {
            status: 200,
            reason: b"OK".to_vec(),
            fields,
            length: Some(hit.length),
        };
        let Some(reply) = reply.take() else {
            return Err(Stop::Gone);
        };
        self.ledger.cached(answer.status);
        let started = reply.start(&self.asked.method, &answer).await;
        let (mut out, keep) = started.map_err(|_| Stop::Gone)?;
        while let Some(piece) = hit
            .piece()
            .map_err(|error| Stop::Failed(format!("the cache: {error}")))?
        {
            put(&mut out, piece, usize::MAX).await?;
        }
        out.end(None).await.map_err(|_| Stop::Gone)?;
        Ok(if keep { After::Keep } else { After::Close })
    }
}
