//! Asking a registry: who asks, how often to try again, and what its answers mean.
//!
//! HOSTILE: a registry sends what it likes, also where to get a token. Credentials go to it, and to
//! where it says tokens are given if that is its own site ([`realm`]).

mod challenge;
mod realm;

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use http::Method;
use ringfence_model::image::Reference;
use ringfence_model::policy::sources::Sources;
use zeroize::Zeroizing;

use super::credentials::{self, Credentials};
use super::{ImageError, PullOptions};
use crate::web::{Address, Answer, Client, PlainHttp, Redirects, Request, Settings, WebError};
use challenge::Challenge;
use realm::{Place, Refusal};

/// BOUND: tries of one request, with 0.25, 0.5, 1 and 2 s between them.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// BOUND: a registry that wants a longer rest gets it from a person.
const LONGEST_REST: Duration = Duration::from_secs(30);
/// BOUND: a token and what is said of it.
const TOKEN_BYTES: u64 = 1 << 20;

/// Told of each try that failed and will be made again: why, and after how many seconds.
pub(super) type OnRetry<'a> = &'a dyn Fn(String, u64);

pub(super) struct Registry {
    client: Client,
    plain: PlainHttp,
    base: String,
    host: String,
    repository: String,
    /// Other servers that the user names as registries.
    trusted: Sources,
    credentials: Option<Credentials>,
    /// The value of the header by which the registry knows us, once it has asked.
    authorization: Mutex<Option<Zeroizing<String>>>,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry")
            .field("base", &self.base)
            .field("repository", &self.repository)
            .finish_non_exhaustive()
    }
}

impl Registry {
    pub fn open(reference: &Reference, options: PullOptions<'_>) -> Result<Self, ImageError> {
        let plain = options.plain_http;
        let endpoint = reference.endpoint();
        let client = Client::open(Settings {
            plain,
            named: Some(without_port(&endpoint)),
            ..Settings::default()
        })?;
        let base = base(&client, &endpoint, plain)?;
        Ok(Self {
            credentials: if options.anonymous {
                None
            } else {
                credentials::find(reference.host())?
            },
            client,
            plain,
            base,
            host: reference.host().to_owned(),
            repository: reference.repository().to_owned(),
            trusted: Sources {
                registries: options.registries.to_vec(),
                ..Sources::default()
            },
            authorization: Mutex::new(None),
        })
    }

    /// Gets a path below the repository: `manifests/…` or `blobs/…`. What is not 2xx is an error.
    pub fn get(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        on_retry: OnRetry<'_>,
    ) -> Result<Answer, ImageError> {
        let url = format!("{}/v2/{}/{path}", self.base, self.repository);
        let mut pause = FIRST_PAUSE;
        let mut asked_who = false;
        let mut tries = 1;
        loop {
            let mut request = Request::get(url.as_str());
            for (name, value) in headers {
                request = request.header(name, value)?;
            }
            if let Some(value) = self.known_as() {
                request = request.secret("authorization", &value)?;
            }
            let (why, rest) = match self.client.send(&request) {
                Ok(answer) => match answer.status {
                    200..300 | 416 => return Ok(answer),
                    401 if !asked_who => {
                        asked_who = true;
                        self.introduce(&answer, on_retry)?;
                        continue;
                    }
                    429 | 500..600 => {
                        let rest = answer.retry_after();
                        (self.refusal(path, &answer), rest)
                    }
                    _ => return Err(self.refusal(path, &answer)),
                },
                Err(error) if error.is_passing() => (error.into(), None),
                Err(error) => return Err(error.into()),
            };
            let rest = rest.unwrap_or(pause);
            if tries == TRIES || rest > LONGEST_REST {
                return Err(why);
            }
            tries += 1;
            on_retry(why.to_string(), rest.as_secs());
            thread::sleep(rest);
            pause *= 2;
        }
    }

    fn known_as(&self) -> Option<Zeroizing<String>> {
        match self.authorization.lock() {
            Ok(known) => known.clone(),
            Err(_) => None,
        }
    }

    fn refusal(&self, path: &str, answer: &Answer) -> ImageError {
        let host = self.host.clone();
        let what = format!("{}/{path}", self.repository);
        match answer.status {
            401 if self.credentials.is_none() => ImageError::WhoAsks {
                host,
                repository: self.repository.clone(),
            },
            401 | 403 => ImageError::NotAllowed {
                host,
                repository: self.repository.clone(),
            },
            404 => ImageError::NotThere { host, what },
            429 => ImageError::TooOften {
                host,
                seconds: answer.retry_after().unwrap_or_default().as_secs(),
            },
            status => ImageError::Status { host, status, what },
        }
    }

    /// Answers the registry's question who asks.
    fn introduce(&self, answer: &Answer, on_retry: OnRetry<'_>) -> Result<(), ImageError> {
        // HOSTILE: where a registry redirects to is not who knows us, and does not ask who we are.
        if !self.client.is_from(answer, &self.base) {
            return Err(self.refusal("", answer));
        }
        let asked = answer.headers("www-authenticate");
        let challenges: Vec<Challenge> = asked
            .iter()
            .flat_map(|text| challenge::read(text))
            .collect();
        let value = if let Some(bearer) = challenges.iter().find(|c| c.scheme == "bearer") {
            let token = self.token(bearer, answer, on_retry)?;
            Zeroizing::new(format!("Bearer {}", token.as_str()))
        } else if challenges.iter().any(|c| c.scheme == "basic") {
            match self.credentials.as_ref().and_then(Credentials::basic) {
                Some(basic) => basic,
                None => return Err(self.refusal("", answer)),
            }
        } else {
            return Err(ImageError::Challenge {
                host: self.host.clone(),
            });
        };
        if let Ok(mut known) = self.authorization.lock() {
            *known = Some(value);
        }
        Ok(())
    }

    /// Refuses to ask for a token where the registry has no say.
    fn check_realm(&self, text: &str) -> Result<(), ImageError> {
        let realm = Address::parse(text, self.plain).map_err(WebError::from)?;
        let registry = Address::parse(&self.base, self.plain).map_err(WebError::from)?;
        let place = if self.client.is_named_open() {
            Place::Open
        } else {
            Place::Private
        };
        match realm::refusal(&registry, &realm, place) {
            None => Ok(()),
            Some(Refusal::Elsewhere(_)) if self.trusted.names_registry(&realm.authority()) => {
                Ok(())
            }
            Some(Refusal::Plain(why) | Refusal::Elsewhere(why)) => Err(ImageError::Realm {
                host: self.host.clone(),
                realm: realm.shown(),
                why,
            }),
        }
    }

    /// Gets a token from where the registry says.
    fn token(
        &self,
        challenge: &Challenge,
        asked: &Answer,
        on_retry: OnRetry<'_>,
    ) -> Result<Zeroizing<String>, ImageError> {
        let unknown = || ImageError::Challenge {
            host: self.host.clone(),
        };
        let realm = challenge.get("realm").ok_or_else(unknown)?;
        self.check_realm(realm)?;
        let scope = format!("repository:{}:pull", self.repository);
        let mut pairs = vec![("scope", scope.as_str())];
        if let Some(service) = challenge.get("service") {
            pairs.push(("service", service));
        }
        let request = match &self.credentials {
            Some(Credentials::Identity(token)) => {
                pairs.push(("grant_type", "refresh_token"));
                pairs.push(("client_id", "ringfence"));
                pairs.push(("refresh_token", token));
                let form = challenge::form(&pairs).into_bytes();
                Request::new(Method::POST, realm).body("application/x-www-form-urlencoded", form)?
            }
            other => {
                let joint = if realm.contains('?') { '&' } else { '?' };
                let request = Request::get(format!("{realm}{joint}{}", challenge::form(&pairs)));
                match other.as_ref().and_then(Credentials::basic) {
                    Some(basic) => request.secret("authorization", &basic)?,
                    None => request,
                }
            }
        };
        // What another server answers is not for the registry to have.
        let request = request.redirects(Redirects::SameOrigin);
        let mut pause = FIRST_PAUSE;
        for tried in 1.. {
            let why = match self.client.send(&request) {
                Ok(answer) if answer.status == 200 => {
                    return realm::token(&answer.json(TOKEN_BYTES)?).ok_or_else(|| {
                        ImageError::NoToken {
                            host: self.host.clone(),
                        }
                    });
                }
                Ok(answer) if matches!(answer.status, 429 | 500..600) => {
                    self.refusal("token", &answer)
                }
                // Whoever gives tokens says no: so does the registry.
                Ok(answer) if matches!(answer.status, 400..500) => {
                    return Err(match self.credentials {
                        Some(_) => ImageError::NotAllowed {
                            host: self.host.clone(),
                            repository: self.repository.clone(),
                        },
                        None => self.refusal("token", asked),
                    });
                }
                Ok(answer) => return Err(self.refusal("token", &answer)),
                Err(error) if error.is_passing() => error.into(),
                Err(error) => return Err(error.into()),
            };
            if tried == TRIES {
                return Err(why);
            }
            on_retry(why.to_string(), pause.as_secs());
            thread::sleep(pause);
            pause *= 2;
        }
        Err(unknown())
    }
}

/// Where the registry answers: `https`, or `http` where that is allowed and `https` is not spoken.
fn base(client: &Client, endpoint: &str, plain: PlainHttp) -> Result<String, ImageError> {
    let (secure, open) = (format!("https://{endpoint}"), format!("http://{endpoint}"));
    let may_be_open = Address::parse(&open, plain).is_ok();
    if !may_be_open {
        return Ok(secure);
    }
    match client.send(&Request::get(format!("{secure}/v2/"))) {
        Ok(_) => Ok(secure),
        // It speaks TLS and is not whom we believe: nothing is said to it in the clear.
        Err(WebError::Distrusted { from, source }) if is_certificate(&source) => {
            Err(WebError::Distrusted { from, source }.into())
        }
        Err(_) => Ok(open),
    }
}

/// The host of `host`, `host:port` and `[address]:port`.
fn without_port(endpoint: &str) -> &str {
    match endpoint.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => endpoint,
    }
}

fn is_certificate(source: &std::io::Error) -> bool {
    let inner = source.get_ref();
    inner
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
        .is_some_and(|error| matches!(error, rustls::Error::InvalidCertificate(_)))
}
