//! Where registries lead the host: to their own site and no other server, whatever they answer.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use anyhow::{Result, ensure};

use crate::image::made::usual;
use crate::image::server::{Reply, Server};
use crate::image::{call, nothing_is_left, says};
use crate::support::in_each_mode;

/// A service of this machine that nobody may connect to. Who does is told so at once.
pub struct Untouched {
    at: SocketAddr,
    connected: Receiver<SocketAddr>,
}

impl Untouched {
    pub fn at(address: &str) -> Result<Self> {
        let listener = TcpListener::bind((address, 0))?;
        let at = listener.local_addr()?;
        let (tell, connected) = mpsc::channel();
        thread::spawn(move || {
            while let Ok((_, from)) = listener.accept() {
                if tell.send(from).is_err() {
                    break;
                }
            }
        });
        Ok(Self { at, connected })
    }

    pub fn port(&self) -> u16 {
        self.at.port()
    }

    /// Fails if anybody has connected. Connections are accepted in their order: one of our own is
    /// behind all that were before.
    pub fn check(&self, what: &str) -> Result<()> {
        let own = TcpStream::connect(self.at)?;
        let first = self.connected.recv()?;
        ensure!(first == own.local_addr()?, "{what}: there was a connection");
        Ok(())
    }
}

#[test]
fn a_realm_on_another_server_is_not_connected_to() -> Result<()> {
    in_each_mode("realms", |env, fixture| {
        let call = call(env, fixture);
        let (inner, other) = (Untouched::at("127.0.0.1")?, Untouched::at("127.0.0.2")?);
        let (port, other_port) = (inner.port(), other.port());
        for realm in [
            format!("http://127.0.0.1:{port}/v1/secret"),
            format!("https://127.0.0.1:{port}/v1/secret"),
            format!("http://localhost:{port}/v1/secret"),
            format!("http://LOCALHOST:{port}/v1/secret"),
            format!("http://[::ffff:127.0.0.1]:{port}/v1/secret"),
            format!("http://127.1:{port}/v1/secret"),
            format!("https://2130706433:{port}/v1/secret"),
            format!("https://0.0.0.0:{port}/v1/secret"),
            format!("http://127.0.0.2:{other_port}/v1/secret"),
            "https://169.254.169.254/token".to_owned(),
            "https://registry.example/token".to_owned(),
        ] {
            let challenge = format!("Bearer realm=\"{realm}\",service=\"x\"");
            let registry = Server::start(&usual(), move |_, _| {
                Some(Reply::new(401, "").with("www-authenticate", challenge.as_str()))
            });
            let words = ["image", "pull", &registry.reference()];
            let output = call.finish(&words)?;
            // A realm that is no address that may be asked at all is invalid, any other denied.
            ensure!(
                matches!(output.status.code(), Some(2 | 3)),
                "{realm}: {output:?}"
            );
            inner.check(&realm)?;
            other.check(&realm)?;
            let told = registry.asked();
            let sent = told
                .iter()
                .any(|one| !one.header("authorization").is_empty());
            ensure!(!sent, "{realm}: {told:?}");
            nothing_is_left(&call, fixture)?;
        }
        Ok(())
    })
}

#[test]
fn a_redirect_of_a_realm_is_not_followed_to_another_server() -> Result<()> {
    in_each_mode("moved", |env, fixture| {
        let call = call(env, fixture);
        let inner = Untouched::at("127.0.0.1")?;
        let to = format!("http://127.0.0.1:{}/v1/secret", inner.port());
        let registry = Server::start(&usual(), move |asked, _| {
            if asked.path.starts_with("/token") {
                return Some(Reply::new(302, "").with("location", to.as_str()));
            }
            let realm = format!("Bearer realm=\"http://{}/token\"", asked.header("host"));
            Some(Reply::new(401, "").with("www-authenticate", realm))
        });
        let output = says(&call, &["pull", &registry.reference()], 4)?;
        ensure!(
            output.stderr.contains("it is another server"),
            "{}",
            output.stderr
        );
        inner.check("a redirect of a realm")?;
        nothing_is_left(&call, fixture)
    })
}

#[test]
fn an_answer_that_is_no_token_is_not_sent_to_the_registry() -> Result<()> {
    in_each_mode("answers", |env, fixture| {
        let call = call(env, fixture);
        for answer in [
            r#"{"token":"user:password of a database"}"#,
            r#"{"token":{"a":"b"}}"#,
            r#"["S3CR3T","S3CR3T"]"#,
            "S3CR3T",
        ] {
            let registry = Server::start(&usual(), move |asked, _| {
                if asked.path.starts_with("/token") {
                    return Some(Reply::new(200, answer));
                }
                let realm = format!("Bearer realm=\"http://{}/token\"", asked.header("host"));
                Some(Reply::new(401, "").with("www-authenticate", realm))
            });
            says(&call, &["pull", &registry.reference()], 4)?;
            let told = registry.asked();
            let sent = told
                .iter()
                .any(|one| !one.header("authorization").is_empty());
            ensure!(!sent, "{answer}: {told:?}");
        }
        nothing_is_left(&call, fixture)
    })
}

#[test]
fn a_redirect_of_a_blob_stays_where_the_registry_is() -> Result<()> {
    in_each_mode("blobs", |env, fixture| {
        let call = call(env, fixture);
        let other = Untouched::at("127.0.0.2")?;
        for to in [
            format!("http://127.0.0.2:{}/blob", other.port()),
            "http://169.254.169.254/blob".to_owned(),
            "https://169.254.169.254/blob".to_owned(),
            "https://10.0.0.1/blob".to_owned(),
        ] {
            let shown = to.clone();
            let registry = Server::start(&usual(), move |asked, _| {
                asked
                    .is_blob()
                    .then(|| Reply::new(307, "").with("location", to.as_str()))
            });
            let output = call.finish(&["image", "pull", &registry.reference()])?;
            ensure!(
                matches!(output.status.code(), Some(3 | 4)),
                "{shown}: {output:?}"
            );
            other.check(&shown)?;
            nothing_is_left(&call, fixture)?;
        }
        Ok(())
    })
}
