//! Hosts outside that speak HTTP, with TLS or without, and what they saw.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::kit;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use ringfence_model::gate::{SecretValue, Setup};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

/// An authority outside, which the gate trusts where a test says so.
pub struct Outside {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: tempfile::NamedTempFile,
}

impl Outside {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key"))
            .expect("a certificate");
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(issuer.pem().as_bytes()).expect("room");
        Self { issuer, file }
    }

    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// How a host with these names shows itself.
    pub fn config(&self, names: &[&str], alpn: &[&str]) -> Arc<ServerConfig> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().expect("a key");
        let leaf = CertificateParams::new(names)
            .expect("names")
            .signed_by(&key, &self.issuer)
            .expect("a certificate");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![leaf.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .expect("a key that fits");
        config.alpn_protocols = alpn.iter().map(|own| own.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// A request that a host saw.
#[derive(Clone, Debug, Default)]
pub struct Saw {
    pub first: String,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Saw {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut all = self.fields.iter();
        let found = all.find(|(own, _)| own.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn path(&self) -> &str {
        self.first.split(' ').nth(1).unwrap_or_default()
    }
}

/// A host of HTTP/1.
pub struct Site {
    pub port: u16,
    saw: Arc<Mutex<Vec<Saw>>>,
}

type Answer = dyn Fn(&Saw) -> Vec<u8> + Send + Sync;

impl Site {
    /// In the clear.
    pub fn plain(answer: impl Fn(&Saw) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let saw = Arc::new(Mutex::new(Vec::new()));
        let seen = saw.clone();
        let port = kit::server(move |stream| speak(stream, &seen, &answer));
        Self { port, saw }
    }

    /// Inside TLS.
    pub fn secure(
        config: Arc<ServerConfig>,
        answer: impl Fn(&Saw) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let saw = Arc::new(Mutex::new(Vec::new()));
        let seen = saw.clone();
        let port = kit::server(move |stream| {
            let connection = ServerConnection::new(config.clone()).expect("a connection");
            speak(StreamOwned::new(connection, stream), &seen, &answer);
        });
        Self { port, saw }
    }

    /// What it saw until now.
    pub fn saw(&self) -> Vec<Saw> {
        self.saw.lock().expect("no panic").clone()
    }
}

/// Answers requests until an answer is empty or says `Connection: close`.
fn speak<T: Read + Write>(stream: T, seen: &Mutex<Vec<Saw>>, answer: &Answer) {
    let mut stream = BufReader::new(stream);
    while let Some(saw) = read(&mut stream) {
        seen.lock().expect("no panic").push(saw.clone());
        let bytes = answer(&saw);
        let close = bytes.is_empty() || String::from_utf8_lossy(&bytes).contains("ion: close");
        let sent = stream.get_mut().write_all(&bytes);
        if sent.and_then(|()| stream.get_mut().flush()).is_err() || close {
            return;
        }
    }
}

fn read(stream: &mut impl BufRead) -> Option<Saw> {
    let mut saw = Saw::default();
    let line = |stream: &mut dyn BufRead| {
        let mut line = String::new();
        stream
            .read_line(&mut line)
            .ok()
            .filter(|length| *length > 0)?;
        Some(line.trim_end().to_owned())
    };
    saw.first = line(stream)?;
    loop {
        let text = line(stream)?;
        let Some((name, value)) = text.split_once(": ") else {
            break;
        };
        saw.fields.push((name.to_owned(), value.to_owned()));
    }
    if let Some(length) = saw.field("content-length").and_then(|own| own.parse().ok()) {
        saw.body = vec![0; length];
        stream.read_exact(&mut saw.body).ok()?;
    } else if saw.field("transfer-encoding").is_some() {
        loop {
            let size = usize::from_str_radix(&line(stream)?, 16).ok()?;
            let mut chunk = vec![0; size];
            stream.read_exact(&mut chunk).ok()?;
            line(stream)?;
            if size == 0 {
                break;
            }
            saw.body.extend(chunk);
        }
    }
    Some(saw)
}

/// A whole answer.
pub fn answer(status: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let mut bytes =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{fields}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Says hello to a path.
pub fn hello(saw: &Saw) -> Vec<u8> {
    let body = format!("hello {}", saw.path());
    answer("200 OK", "X-Own: yes\r\n", body.as_bytes())
}

/// The host `a.test` inside TLS, and a setup with rules for it: `{}` stands for its port.
pub fn a_test(answer: fn(&Saw) -> Vec<u8>, lines: &[&str]) -> (Setup, Site, Outside) {
    let outside = Outside::new();
    let world = kit::World::new(&[("a.test", &["127.0.0.1"])]);
    let site = Site::secure(outside.config(&["a.test"], &["http/1.1"]), answer);
    let port = site.port.to_string();
    let lines: Vec<String> = lines.iter().map(|line| line.replace("{}", &port)).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let mut setup = kit::setup(kit::rules(&lines), &world);
    setup.roots = Some(outside.path().to_owned());
    (setup, site, outside)
}

/// A gate that looks into requests, and a file with what the inside trusts.
pub struct Looking {
    pub gate: kit::Gate,
    authority: tempfile::NamedTempFile,
}

impl Looking {
    pub fn start(setup: &Setup, values: &[&str]) -> Option<Self> {
        if !kit::has_curl() {
            return None;
        }
        let values: Vec<SecretValue> = values
            .iter()
            .map(|value| SecretValue::new(value.as_bytes().to_vec()))
            .collect();
        let gate = kit::Gate::start_with(setup, &values)?;
        let mut authority = tempfile::NamedTempFile::new().expect("a file");
        let pem = gate.authority.clone().expect("requests are looked into");
        authority.write_all(pem.as_bytes()).expect("room");
        Some(Self { gate, authority })
    }

    /// Runs curl inside, which trusts the gate.
    pub fn curl(&self, arguments: &[&str]) -> (i32, String) {
        let authority = self.authority().to_str().expect("a path");
        self.gate
            .curl(&[&["--cacert", authority], arguments].concat())
    }

    pub fn authority(&self) -> &Path {
        self.authority.path()
    }

    /// Sends bytes inside TLS from inside, and reads to the end.
    pub fn raw(&self, host: &str, port: u16, bytes: impl Into<Vec<u8>>) -> String {
        let bytes = bytes.into();
        let mut stream = self.secure(host, port, 1 << 14);
        self.gate.inside(move || {
            // The gate may end the connection in the middle.
            stream.write_all(&bytes).ok();
            stream.flush().ok();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).ok();
            String::from_utf8_lossy(&all).into_owned()
        })
    }

    /// A connection of TLS from inside, sent in parts of this size.
    pub fn secure(&self, host: &str, port: u16, part: usize) -> Secure {
        let address = self.gate.lookup(host).expect("it is allowed");
        let stream = self
            .gate
            .inside(move || kit::connect(address.into(), port).expect("it listens"));
        client(self.authority(), host, stream, part)
    }
}

/// A client of TLS that trusts what is in a file.
pub fn client(trusts: &Path, host: &str, stream: TcpStream, part: usize) -> Secure {
    let mut roots = RootCertStore::empty();
    for own in CertificateDer::pem_file_iter(trusts).expect("PEM") {
        roots.add(own.expect("PEM")).expect("a certificate");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    StreamOwned::new(connection, InParts { stream, part })
}

pub type Secure = StreamOwned<ClientConnection, InParts>;

/// A connection whose bytes leave in parts.
pub struct InParts {
    stream: TcpStream,
    part: usize,
}

impl Read for InParts {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for InParts {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_nodelay(true)?;
        self.stream.write(&bytes[..bytes.len().min(self.part)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// A connection from inside to the gate's proxy, as a tunnel to a place.
pub fn tunnel(place: &str) -> TcpStream {
    let mut stream = kit::connect(std::net::Ipv4Addr::new(127, 64, 0, 1).into(), 3128)
        .expect("the proxy is there");
    write!(stream, "CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n").expect("it reads");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1) {
        head.push(byte[0]);
    }
    assert!(
        head.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&head)
    );
    stream
}
