//! The `docker-registry` of Debian on loopback, and images put into it by its own interface.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use http::Method;
use ringfence_engine::web::{Client, PlainHttp, Request, Settings};

use super::made::{Made, digest};

/// The test's own registry is on this machine.
const LOCAL: Settings<'static> = Settings {
    plain: PlainHttp::LoopbackOnly,
    named: Some("127.0.0.1"),
    silence: Duration::from_secs(60),
};

/// A registry that ends with the test.
pub struct Registry {
    child: Child,
    port: u16,
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It is ours, and nothing is to be kept.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Registry {
    /// `None` where the program is not there.
    pub fn start(directory: &Path, extra: &str) -> Result<Option<Self>> {
        // A port that was free a moment ago may not be any more.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            let config = directory.join(format!("config-{port}.yml"));
            let text = format!(
                "version: 0.1\nlog: {{ level: error }}\n\
                 storage:\n  filesystem: {{ rootdirectory: '{}' }}\n  delete: {{ enabled: true }}\n\
                 http:\n  addr: '127.0.0.1:{port}'\n{extra}",
                directory.join("storage").display()
            );
            std::fs::write(&config, text)?;
            let started = Command::new("docker-registry")
                .arg("serve")
                .arg(&config)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let child = match started {
                Ok(child) => child,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    println!("SKIPPED a real registry: no docker-registry");
                    return Ok(None);
                }
                Err(error) => return Err(error).context("cannot start docker-registry"),
            };
            let mut registry = Self { child, port };
            if registry.answers()? {
                return Ok(Some(registry));
            }
        }
        bail!("docker-registry does not start");
    }

    fn answers(&mut self) -> Result<bool> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(self.child.try_wait()?.is_none());
            }
            if self.child.try_wait()?.is_some() {
                return Ok(false);
            }
            ensure!(Instant::now() < deadline, "docker-registry does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn name(&self, rest: &str) -> String {
        format!("127.0.0.1:{}/{rest}", self.port)
    }

    /// Puts an image there, in the clear, through the registry's own interface.
    pub fn push(&self, image: &Made, name: &str, tag: &str, media_type: &str) -> Result<()> {
        for blob in image.blobs.iter().chain([&image.config]) {
            self.push_blob(name, blob)?;
        }
        self.push_manifest(name, tag, media_type, &image.manifest)
    }

    fn push_blob(&self, name: &str, blob: &[u8]) -> Result<()> {
        let client = Client::open(LOCAL)?;
        let base = format!("http://127.0.0.1:{}", self.port);
        let url = format!("{base}/v2/{name}/blobs/uploads/");
        let began = client.send(&Request::new(Method::POST, url))?;
        ensure!(began.status == 202, "{began:?}");
        let place = began.header("location").context("no place to put it")?;
        let place = if place.starts_with('/') {
            format!("{base}{place}")
        } else {
            place.to_owned()
        };
        let joint = if place.contains('?') { '&' } else { '?' };
        let request = Request::new(
            Method::PUT,
            format!("{place}{joint}digest={}", digest(blob)),
        )
        .body("application/octet-stream", blob.to_vec())?;
        let put = client.send(&request)?;
        ensure!(put.status == 201, "{put:?}");
        Ok(())
    }

    pub fn push_manifest(&self, name: &str, tag: &str, kind: &str, manifest: &[u8]) -> Result<()> {
        let client = Client::open(LOCAL)?;
        let url = format!("http://127.0.0.1:{}/v2/{name}/manifests/{tag}", self.port);
        let request = Request::new(Method::PUT, url).body(kind, manifest.to_vec())?;
        let put = client.send(&request)?;
        let status = put.status;
        ensure!(status == 201, "{status}: {:?}", put.bytes(10_000));
        Ok(())
    }
}
