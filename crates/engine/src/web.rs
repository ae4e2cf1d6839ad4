//! The one HTTP client of the host: for registries and forges.
//!
//! It blocks, follows a few redirects itself and bounds all that it is sent. Statuses are no
//! errors: whoever asks knows what a 404 means.
//!
//! INVARIANT: what is given as a secret goes to the origin (scheme, host, port) that was asked and
//! to no other, whatever it redirects to. It is in no error and no debug text. No request leaves
//! `https` for `http`. Plain `http` reaches loopback only, unless the caller allows it.
//!
//! Certificates are believed as the system believes them; `SSL_CERT_FILE` and `SSL_CERT_DIR` name
//! others. `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` are followed, but not to loopback.
//!
//! HOSTILE: a server chooses each status, header and body.

mod address;
pub(crate) mod reach;
#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::fmt;
use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, Timeout};

use reach::{CheckedResolver, Named, NotPublic};

pub use address::{Address, AddressError, PlainHttp};

/// BOUND: registries redirect to where they keep blobs, and that once or twice.
const REDIRECTS: usize = 5;
/// BOUND: tokens make headers of some kilobytes.
const HEAD_BYTES: usize = 64 << 10;
/// BOUND: names and connections that take longer are not going to be there.
const CONNECT: Duration = Duration::from_secs(30);
/// BOUND: a server that says nothing for so long will say nothing.
const SILENCE: Duration = Duration::from_secs(60);
/// BOUND: a server's wish to be left alone is heard up to this.
const RETRY_AFTER_MOST: Duration = Duration::from_secs(3600);

/// How to ask.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    pub plain: PlainHttp,
    /// The host that the user named, as it is in a URL: it may be anywhere.
    pub named: Option<&'a str>,
    /// How long a server may be silent, at each step and within a body.
    pub silence: Duration,
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self {
            plain: PlainHttp::LoopbackOnly,
            named: None,
            silence: SILENCE,
        }
    }
}

/// One request. Its debug text has no secret.
pub struct Request {
    method: Method,
    url: String,
    headers: HeaderMap,
    secrets: HeaderMap,
    body: Vec<u8>,
    redirects: Redirects,
}

/// Where a request may be redirected to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redirects {
    /// To any server that may be asked.
    #[default]
    AnyServer,
    /// To other places of the server that was asked.
    SameOrigin,
}

/// What came back; its body is still on its way.
pub struct Answer {
    pub status: u16,
    /// Where it came from, after all redirects; without query.
    pub from: String,
    headers: HeaderMap,
    body: Body,
}

/// Why there is no answer, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum WebError {
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("cannot find a certificate to believe others by")]
    NoCertificates(#[source] io::Error),
    #[error("`{name}` cannot be a header of a request")]
    BadHeader { name: String },
    #[error("`{from}` has the address {address}, which is not on the open network")]
    NotPublic { from: String, address: IpAddr },
    #[error("cannot reach `{from}`")]
    Reach {
        from: String,
        #[source]
        source: io::Error,
    },
    #[error("`{from}` did not answer in time: {what}")]
    TimedOut { from: String, what: String },
    #[error("`{from}` cannot be believed: its certificate or its TLS is wrong")]
    Distrusted {
        from: String,
        #[source]
        source: io::Error,
    },
    #[error("`{from}` redirects to `{to}`, which is not followed: {why}")]
    Redirect {
        from: String,
        to: String,
        why: &'static str,
    },
    #[error("`{from}` redirects more than {REDIRECTS} times")]
    TooManyRedirects { from: String },
    #[error("the answer of `{from}` has more than {most} bytes")]
    TooLarge { from: String, most: u64 },
    #[error("the answer of `{from}` broke off")]
    BrokeOff {
        from: String,
        #[source]
        source: io::Error,
    },
    #[error("the answer of `{from}` is not the JSON it should be")]
    Json {
        from: String,
        #[source]
        source: serde_json::Error,
    },
}

impl WebError {
    /// Whether the same request may well succeed later.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Reach { .. } | Self::TimedOut { .. } | Self::BrokeOff { .. }
        )
    }
}

impl Request {
    pub fn new(method: Method, url: impl Into<String>) -> Self {
        Self {
            method,
            url: url.into(),
            headers: HeaderMap::new(),
            secrets: HeaderMap::new(),
            body: Vec::new(),
            redirects: Redirects::default(),
        }
    }

    /// Where it may be redirected to.
    pub fn redirects(mut self, redirects: Redirects) -> Self {
        self.redirects = redirects;
        self
    }

    pub fn get(url: impl Into<String>) -> Self {
        Self::new(Method::GET, url)
    }

    /// A header that everybody may see whom the request is redirected to.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, WebError> {
        let (name, value) = field(name, value)?;
        self.headers.append(name, value);
        Ok(self)
    }

    /// A header for the origin of the URL alone.
    pub fn secret(mut self, name: &str, value: &str) -> Result<Self, WebError> {
        let (name, mut value) = field(name, value)?;
        value.set_sensitive(true);
        self.secrets.append(name, value);
        Ok(self)
    }

    /// What is sent after the head. It is not sent again to where the request is redirected.
    pub fn body(mut self, content_type: &str, body: Vec<u8>) -> Result<Self, WebError> {
        let (name, value) = field(CONTENT_TYPE.as_str(), content_type)?;
        self.headers.insert(name, value);
        self.body = body;
        Ok(self)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("url", &self.url)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

fn field(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), WebError> {
    let bad = || WebError::BadHeader {
        name: name.to_owned(),
    };
    Ok((
        name.parse().map_err(|_| bad())?,
        value.parse().map_err(|_| bad())?,
    ))
}

/// Asks servers. Connections are kept and shared; a copy costs nothing.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    plain: PlainHttp,
    named: Arc<Named>,
}

impl Client {
    pub fn open(settings: Settings<'_>) -> Result<Self, WebError> {
        let native = rustls_native_certs::load_native_certs();
        let certificates: Vec<Certificate<'static>> = native
            .certs
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect();
        if certificates.is_empty() {
            // Nobody would ever be believed; say why, not that each host is a stranger.
            let source = match native.errors.into_iter().next() {
                Some(error) => io::Error::other(error),
                None => io::Error::new(io::ErrorKind::NotFound, "the host has no certificates"),
            };
            return Err(WebError::NoCertificates(source));
        }
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&certificates))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(HEAD_BYTES)
            .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(settings.silence))
            .timeout_per_read(Some(settings.silence))
            .timeout_per_write(Some(settings.silence))
            .build();
        let named = Arc::new(Named::new(settings.named));
        let resolver = CheckedResolver::new(Arc::clone(&named), DefaultResolver::default());
        Ok(Self {
            agent: Agent::with_parts(config, DefaultConnector::default(), resolver),
            plain: settings.plain,
            named,
        })
    }

    /// Sends a request, and follows where a `GET` or `HEAD` is redirected to.
    pub fn send(&self, request: &Request) -> Result<Answer, WebError> {
        let first = Address::parse(&request.url, self.plain)?;
        let mut at = first.clone();
        for _ in 0..=REDIRECTS {
            let answer = self.send_once(request, &at, at.same_origin(&first))?;
            if !matches!(answer.status, 301 | 302 | 303 | 307 | 308)
                || !matches!(request.method, Method::GET | Method::HEAD)
            {
                return Ok(answer);
            }
            let Some(to) = answer.header(LOCATION.as_str()) else {
                return Ok(answer);
            };
            let refused = |why| WebError::Redirect {
                from: at.shown(),
                to: address::shown(to),
                why,
            };
            let next = at.follow(to, self.plain).map_err(refused)?;
            if request.redirects == Redirects::SameOrigin && !next.same_origin(&first) {
                return Err(refused("it is another server"));
            }
            at = next;
        }
        Err(WebError::TooManyRedirects {
            from: first.shown(),
        })
    }

    /// Whether the server that the user named is on the open network, as far as it was looked up.
    pub fn is_named_open(&self) -> bool {
        self.named.is_open()
    }

    /// Whether the server at an address gave the answer, and not one that it redirected to.
    pub fn is_from(&self, answer: &Answer, address: &str) -> bool {
        let both = (
            Address::parse(&answer.from, self.plain),
            Address::parse(address, self.plain),
        );
        matches!(both, (Ok(from), Ok(address)) if from.same_origin(&address))
    }

    fn send_once(
        &self,
        request: &Request,
        at: &Address,
        with_secrets: bool,
    ) -> Result<Answer, WebError> {
        let failed = |error| explain(at, error);
        let mut builder = http::Request::builder()
            .method(request.method.clone())
            .uri(at.uri());
        if let Some(headers) = builder.headers_mut() {
            headers.extend(request.headers.clone());
            if with_secrets {
                headers.extend(request.secrets.clone());
            }
        }
        // Methods that carry no body in HTTP are sent without one.
        let response = if matches!(request.method, Method::GET | Method::HEAD | Method::DELETE) {
            let asked = builder.body(()).map_err(|error| failed(error.into()))?;
            self.run(asked, at)
        } else {
            let asked = builder
                .body(&request.body[..])
                .map_err(|error| failed(error.into()))?;
            self.run(asked, at)
        };
        let (head, body) = response.map_err(failed)?.into_parts();
        Ok(Answer {
            status: head.status.as_u16(),
            from: at.shown(),
            headers: head.headers,
            body,
        })
    }

    fn run(
        &self,
        request: http::Request<impl ureq::AsSendBody>,
        at: &Address,
    ) -> Result<http::Response<Body>, ureq::Error> {
        if at.is_loopback() {
            // A proxy has another loopback.
            let request = self.agent.configure_request(request).proxy(None).build();
            return self.agent.run(request);
        }
        let proxy = self.agent.config().proxy();
        if proxy.is_some_and(|proxy| !proxy.is_no_proxy(at.uri())) {
            self.named
                .check_proxied(at.uri())
                .map_err(|refused| ureq::Error::Other(Box::new(refused)))?;
        }
        self.agent.run(request)
    }
}

/// What failed, told apart by whose move it is.
fn explain(at: &Address, error: ureq::Error) -> WebError {
    let from = at.shown();
    match error {
        ureq::Error::Timeout(what) => WebError::TimedOut {
            from,
            what: timeout(what).to_owned(),
        },
        ureq::Error::Rustls(source) => WebError::Distrusted {
            from,
            source: io::Error::other(source),
        },
        ureq::Error::Tls(why) => WebError::Distrusted {
            from,
            source: io::Error::other(why),
        },
        // Rustls speaks through the stream it reads from.
        ureq::Error::Io(source)
            if source
                .get_ref()
                .is_some_and(|inner| inner.is::<rustls::Error>()) =>
        {
            WebError::Distrusted { from, source }
        }
        ureq::Error::Io(source) => WebError::Reach { from, source },
        ureq::Error::Other(refused) if refused.is::<NotPublic>() => {
            match refused.downcast::<NotPublic>() {
                Ok(refused) => WebError::NotPublic {
                    from,
                    address: refused.address,
                },
                Err(error) => WebError::Reach {
                    from,
                    source: io::Error::other(error),
                },
            }
        }
        error => WebError::Reach {
            from,
            source: io::Error::other(error),
        },
    }
}

fn timeout(what: Timeout) -> &'static str {
    match what {
        Timeout::Resolve => "its name was not found",
        Timeout::Connect => "no connection came about",
        Timeout::RecvResponse => "no answer began",
        _ => "it was silent for too long",
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// All values of a header that are text.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        self.headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect()
    }

    /// How many bytes the body will have, where the server says so.
    pub fn length(&self) -> Option<u64> {
        self.header(CONTENT_LENGTH.as_str())?.parse().ok()
    }

    /// How long the server wants to be left alone; an hour at the most.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.header(RETRY_AFTER.as_str())?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds).min(RETRY_AFTER_MOST))
    }

    /// The body, whole; one with more bytes than this is refused.
    pub fn bytes(self, most: u64) -> Result<Vec<u8>, WebError> {
        let from = self.from.clone();
        let mut bytes = Vec::new();
        self.reader()
            .take(most.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|source| broke_off(&from, source))?;
        if bytes.len() as u64 > most {
            Err(WebError::TooLarge { from, most })
        } else {
            Ok(bytes)
        }
    }

    /// The body as JSON.
    pub fn json<T: serde::de::DeserializeOwned>(self, most: u64) -> Result<T, WebError> {
        let from = self.from.clone();
        let bytes = self.bytes(most)?;
        serde_json::from_slice(&bytes).map_err(|source| WebError::Json { from, source })
    }

    /// The body as it comes. HOSTILE: whoever reads bounds it.
    pub fn reader(self) -> impl Read {
        // Unset, the bound of the library would cut large blobs.
        self.body.into_with_config().limit(u64::MAX).reader()
    }
}

/// Why a body ended before its time.
pub fn broke_off(from: &str, source: io::Error) -> WebError {
    let timed_out = source.kind() == io::ErrorKind::TimedOut
        || source
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<ureq::Error>())
            .is_some_and(|error| matches!(error, ureq::Error::Timeout(_)))
        || source.source().is_some_and(|inner| {
            matches!(
                inner.downcast_ref::<ureq::Error>(),
                Some(ureq::Error::Timeout(_))
            )
        });
    if timed_out {
        WebError::TimedOut {
            from: from.to_owned(),
            what: timeout(Timeout::RecvBody).to_owned(),
        }
    } else {
        WebError::BrokeOff {
            from: from.to_owned(),
            source,
        }
    }
}
