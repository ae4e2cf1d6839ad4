//! Package indexes: their own answers say which hosts files come from.
//!
//! HOSTILE: whoever publishes a package writes parts of these answers. Only what the index itself
//! writes is read: links of its own pages, `url` of its files, `dist.tarball` of its versions.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ringfence_model::gate::{Happened, Index, IndexKind};
use ringfence_model::host::{Host, HostPattern, Reach};
use ringfence_model::policy::network::{
    Effect, NetworkRule, Origin, Protocol, RequestPath, Verdict, WEB_PORTS,
};
use serde::Deserialize;

use crate::head::{Fields, Place, Scheme};
use crate::inspect::Opener;
use crate::state::Flow;

/// BOUND: bytes of an answer that are read. Longer ones exist, and name the same hosts.
const MAX_ANSWER: usize = 32 << 20;
/// BOUND: bytes of all answers that are held at a time. Clients decide how long that is.
const MAX_HELD: usize = 64 << 20;
/// BOUND: hosts that one answer may name.
const MAX_NAMED: usize = 8;

/// Where files are said to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Named {
    pub(crate) host: Host,
    pub(crate) port: u16,
}

/// The index that a flow is to.
pub(crate) fn index_of(flow: &Flow) -> Option<&Index> {
    let mut all = flow.gate.setup.indexes.iter();
    all.find(|own| own.host == flow.host && own.port == flow.port)
}

/// Whether answers of this kind name hosts.
pub(crate) fn names_hosts(kind: IndexKind) -> bool {
    match kind {
        IndexKind::Simple | IndexKind::Npm | IndexKind::Cargo => true,
        IndexKind::Apt | IndexKind::Go => false,
    }
}

/// What a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Page,
    Files,
    Versions,
    Settings,
}

/// How many bytes of answers are held, of all that are read now.
#[derive(Clone, Default)]
pub(crate) struct HeldBytes(Rc<Cell<usize>>);

/// The bytes of one answer.
struct Text {
    bytes: Vec<u8>,
    held: HeldBytes,
}

impl Text {
    /// `None`: no more can be held.
    fn add(&mut self, bytes: &[u8]) -> Option<()> {
        let all = self.held.0.get() + bytes.len();
        if all > MAX_HELD || self.bytes.len() + bytes.len() > MAX_ANSWER {
            return None;
        }
        self.held.0.set(all);
        self.bytes.extend_from_slice(bytes);
        Some(())
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        self.held.0.set(self.held.0.get() - self.bytes.len());
    }
}

/// An answer of an index that is read beside being passed on.
pub(crate) struct Reading {
    form: Form,
    opener: Option<Opener>,
    /// `None`: it is too long, or cannot be opened.
    text: Option<Text>,
}

impl Reading {
    /// `None`: this answer names nothing.
    pub(crate) fn new(
        kind: IndexKind,
        path: &RequestPath,
        fields: &Fields,
        held: &HeldBytes,
    ) -> Option<Self> {
        let content = fields.once("content-type").unwrap_or_default();
        let content = String::from_utf8_lossy(content).to_ascii_lowercase();
        let content = content.split(';').next().unwrap_or_default().trim();
        let mut segments = path.as_str().split('/');
        let form = match (kind, content) {
            (IndexKind::Simple, "application/vnd.pypi.simple.v1+json") => Form::Files,
            // Other pages of the same host may be written by anybody.
            (IndexKind::Simple, "text/html" | "application/vnd.pypi.simple.v1+html")
                if segments.any(|own| matches!(own, "simple" | "+simple")) =>
            {
                Form::Page
            }
            (IndexKind::Npm, "application/json" | "application/vnd.npm.install-v1+json") => {
                Form::Versions
            }
            (IndexKind::Cargo, _) if segments.next_back() == Some("config.json") => Form::Settings,
            _ => return None,
        };
        let opener = Opener::of(fields).ok()?;
        Some(Self {
            form,
            opener,
            text: Some(Text {
                bytes: Vec::new(),
                held: held.clone(),
            }),
        })
    }

    pub(crate) fn piece(&mut self, piece: &[u8]) {
        let Some(text) = &mut self.text else { return };
        let fits = match &mut self.opener {
            None => text.add(piece).is_some(),
            // Little by little: what is opened may be a thousand times as long.
            Some(opener) => piece.chunks(1 << 10).all(|part| {
                let opened = opener.piece(part);
                opened.is_ok_and(|opened| text.add(&opened).is_some())
            }),
        };
        if !fits {
            self.text = None;
        }
    }

    /// The hosts that are named, when all of it was read.
    pub(crate) fn end(mut self) -> BTreeSet<Named> {
        let Some(mut text) = self.text.take() else {
            return BTreeSet::new();
        };
        match self.opener.as_mut().map(Opener::end) {
            Some(Ok(rest)) if text.add(&rest).is_some() => {}
            Some(_) => return BTreeSet::new(),
            None => {}
        }
        let text = &text.bytes;
        let urls = match self.form {
            Form::Page => links(text),
            Form::Files => files(text),
            Form::Versions => tarballs(text),
            Form::Settings => settings(text),
        };
        let named: BTreeSet<Named> = urls.iter().filter_map(|url| place_of(url)).collect();
        named.into_iter().take(MAX_NAMED).collect()
    }
}

#[derive(Deserialize)]
struct Files {
    #[serde(default)]
    files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    url: String,
}

fn files(text: &[u8]) -> Vec<String> {
    let files = serde_json::from_slice::<Files>(text);
    files.map_or_else(
        |_| Vec::new(),
        |own| own.files.into_iter().map(|file| file.url).collect(),
    )
}

/// What a registry says of all versions of a package.
///
/// HOSTILE: what it says of one version is the package's own file, in which a publisher may write
/// anything. That always has a `version`, and what the registry itself puts together never has.
#[derive(Deserialize)]
struct Package {
    version: Option<serde::de::IgnoredAny>,
    #[serde(rename = "dist-tags")]
    tags: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    versions: BTreeMap<String, Release>,
}

#[derive(Deserialize)]
struct Release {
    dist: Option<Dist>,
}

#[derive(Deserialize)]
struct Dist {
    tarball: Option<String>,
}

fn tarballs(text: &[u8]) -> Vec<String> {
    let Ok(package) = serde_json::from_slice::<Package>(text) else {
        return Vec::new();
    };
    if package.version.is_some() || package.tags.is_none() {
        return Vec::new();
    }
    let releases = package.versions.into_values();
    releases
        .filter_map(|release| release.dist?.tarball)
        .collect()
}

#[derive(Deserialize)]
struct Settings {
    dl: Option<String>,
}

fn settings(text: &[u8]) -> Vec<String> {
    let settings = serde_json::from_slice::<Settings>(text);
    settings.ok().and_then(|own| own.dl).into_iter().collect()
}

/// The targets of links of a page.
fn links(text: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(text);
    let mut found = Vec::new();
    let mut rest = &*text;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix("!--") {
            rest = after.find("-->").map_or("", |end| &after[end..]);
            continue;
        }
        let Some(end) = rest.find('>') else { break };
        let tag = &rest[..end];
        let name = tag.get(..2).unwrap_or_default();
        if name.eq_ignore_ascii_case("a ") || name.eq_ignore_ascii_case("a\n") {
            found.extend(target(tag));
        }
        rest = &rest[end..];
    }
    found
}

/// The value of `href`, in quotation marks.
fn target(tag: &str) -> Option<String> {
    let lower = tag.to_ascii_lowercase();
    let at = lower.find("href=")? + "href=".len();
    let value = tag.get(at..)?;
    let mark = value
        .chars()
        .next()
        .filter(|own| matches!(own, '"' | '\''))?;
    let value = &value[1..];
    value.find(mark).map(|end| value[..end].to_owned())
}

/// The host of a whole URL. Others are of the index itself.
pub(crate) fn place_of(url: &str) -> Option<Named> {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Scheme::Https, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Scheme::Http, rest),
        _ => return None,
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let place = Place::parse(&rest[..end])?;
    Some(Named {
        port: place.port.unwrap_or(scheme.port()),
        host: place.host,
    })
}

/// Allows what an index named, and says so. Answers what it is new to.
pub(crate) async fn learn(
    flow: &Flow,
    index: &Host,
    rule: &NetworkRule,
    named: BTreeSet<Named>,
) -> Vec<Named> {
    let mut learned = Vec::new();
    for named in named {
        let allowed = may_get(flow, &named);
        if allowed || !may_be_named(&named, rule, flow.port) {
            continue;
        }
        let added = NetworkRule {
            effect: Effect::Allow,
            protocol: Protocol::Web,
            methods: vec!["GET".to_owned(), "HEAD".to_owned()],
            host: HostPattern::Exact(named.host.clone()),
            ports: vec![named.port],
            path: None,
            // An index of one's own network may name what is there; one of the open network may not.
            addresses: rule.addresses.clone(),
            budget: rule.budget.clone(),
            from: Origin {
                file: format!("named by {index}"),
                line: 0,
            },
        };
        if flow.gate.learn(index, added.clone()) {
            let index = index.clone();
            let mut to = flow.clone();
            (to.host, to.port) = (named.host.clone(), named.port);
            let traffic = to.traffic(Some(&added), Happened::Learned { index });
            flow.gate.tell(traffic).await;
            learned.push(named);
        }
    }
    learned
}

fn may_get(flow: &Flow, named: &Named) -> bool {
    let Some(path) = RequestPath::parse("/") else {
        return false;
    };
    let rules = flow.gate.rules();
    let verdict = rules.request(&named.host, named.port, "GET", &path);
    matches!(verdict, Verdict::Allow(_))
}

/// A rule that names an address reaches it wherever it is; an index may only name what its own rule
/// would reach, and one at a usual port only usual ports.
fn may_be_named(named: &Named, rule: &NetworkRule, port: u16) -> bool {
    let reached = match named.host {
        Host::Name(_) => true,
        Host::Address(address) => Reach::of(address) == Reach::Public || rule.names(address),
    };
    let usual = |port: u16| WEB_PORTS.contains(&port);
    reached && (usual(named.port) || !usual(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(kind: IndexKind, path: &str, content: &str, text: &[u8]) -> Vec<String> {
        let mut fields = Fields::default();
        fields
            .push("Content-Type", content.as_bytes())
            .expect("a field");
        let path = RequestPath::parse(path).expect("a path");
        let held = HeldBytes::default();
        let Some(mut reading) = Reading::new(kind, &path, &fields, &held) else {
            return Vec::new();
        };
        text.chunks(7).for_each(|piece| reading.piece(piece));
        let all = reading.end().into_iter();
        assert_eq!(held.0.get(), 0);
        all.map(|own| format!("{}:{}", own.host, own.port))
            .collect()
    }

    #[test]
    fn pages_name_hosts_by_their_links() {
        let page = b"<!DOCTYPE html><body><!-- <a href=\"https://no.example/\"> -->\n\
            <A class='x' href='http://Plain.example:8080/a.whl#sha256=1'>a</a>\
            <a href=\"https://files.example/p/a.tar.gz\">https://text.example/</a>\
            <a href=\"../../rel/a.whl\">a</a><p title=\"https://attr.example/\"><a href=https://bare.example>\
            <a href=\"https://u@evil.example/\">a</a><a href=\"javascript:x\">";
        let html = "text/html; charset=utf-8";
        let all = named(IndexKind::Simple, "/simple/a/", html, page);
        assert_eq!(all, ["files.example:443", "plain.example:8080"]);
        assert!(named(IndexKind::Simple, "/project/a/", html, page).is_empty());
        assert!(named(IndexKind::Npm, "/simple/a/", html, page).is_empty());
    }

    #[test]
    fn only_what_the_index_writes_names_hosts() {
        let json = "application/vnd.pypi.simple.v1+json";
        let files = br#"{"files":[{"url":"https://f.example/a.whl","x":"https://no.example/"}],"meta":{"url":"https://no2.example"}}"#;
        assert_eq!(
            named(IndexKind::Simple, "/simple/a/", json, files),
            ["f.example:443"]
        );
        let versions = br#"{"dist-tags":{},"tarball":"https://no1.example/","versions":{"1.0.0":{"dist":{"tarball":"https://t.example/a.tgz"},
            "mine":{"dist":{"tarball":"https://no2.example/"}}}},"readme":"\"dist\":{\"tarball\":\"https://no3.example/\"}"}"#;
        assert_eq!(
            named(IndexKind::Npm, "/a", "application/json", versions),
            ["t.example:443"]
        );
        // What is said of one version is the package's own file.
        let own = br#"{"name":"a","version":"1.0.0","dist-tags":{},"versions":{"x":{"dist":{"tarball":"https://no4.example/"}}}}"#;
        let other = br#"{"versions":{"x":{"dist":{"tarball":"https://no5.example/"}}}}"#;
        for text in [&own[..], other] {
            assert_eq!(
                named(IndexKind::Npm, "/a/1.0.0", "application/json", text),
                [""; 0]
            );
        }
        let settings =
            br#"{"dl":"https://dl.example/crates/{crate}/{version}","api":"https://no.example"}"#;
        assert_eq!(
            named(
                IndexKind::Cargo,
                "/index/config.json",
                "text/plain",
                settings
            ),
            ["dl.example:443"]
        );
        assert!(named(IndexKind::Cargo, "/se/rd/serde", "text/plain", settings).is_empty());
        for text in [&b"{"[..], b"[]", b"\xff", b""] {
            assert!(named(IndexKind::Npm, "/a", "application/json", text).is_empty());
        }
    }

    #[test]
    fn answers_that_are_held_are_bounded_together() {
        let held = HeldBytes::default();
        let path = RequestPath::parse("/simple/a/").expect("a path");
        let mut fields = Fields::default();
        fields.push("Content-Type", b"text/html").expect("a field");
        let begin = || Reading::new(IndexKind::Simple, &path, &fields, &held).expect("a page");
        let filler = vec![b' '; 20 << 20];
        let mut all: Vec<Reading> = (0..4).map(|_| begin()).collect();
        for reading in &mut all {
            reading.piece(&filler);
            reading.piece(b"<a href='https://files.example/a'>");
        }
        assert!(held.0.get() <= MAX_HELD);
        let named: Vec<usize> = all.into_iter().map(|own| own.end().len()).collect();
        assert_eq!(named, [1, 1, 1, 0]);
        // They are gone, and there is room again.
        assert_eq!(held.0.get(), 0);
        let mut again = begin();
        again.piece(&filler);
        drop(again);
        assert_eq!(held.0.get(), 0);
    }

    #[test]
    fn an_answer_names_few_hosts() {
        let mut page = String::new();
        for number in 0..100 {
            page.push_str(&format!("<a href=\"https://h{number}.example/\">"));
        }
        let all = named(
            IndexKind::Simple,
            "/simple/a/",
            "text/html",
            page.as_bytes(),
        );
        assert_eq!(all.len(), MAX_NAMED);
    }
}
