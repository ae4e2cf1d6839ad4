//! Where an engine is: as its own client would find it.

use std::path::{Path, PathBuf};

use ringfence_model::hex;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::way::Way;
use crate::backend::BackendError;

/// Which program's engine it is. Both speak one language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    Docker,
    Podman,
}

impl Flavour {
    /// For a person.
    pub fn engine(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }
}

/// What of the caller's surroundings says where an engine is.
pub struct Surroundings<'a> {
    /// A variable of the environment.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    pub read: &'a dyn Fn(&Path) -> Option<String>,
    /// Whether something is there.
    pub exists: &'a dyn Fn(&Path) -> bool,
}

/// The way to it.
pub fn way(flavour: Flavour, around: &Surroundings<'_>) -> Result<Way, BackendError> {
    let at = match flavour {
        Flavour::Docker => docker(around),
        Flavour::Podman => podman(around),
    };
    let set = |name: &str| (around.variable)(name).is_some_and(|value| !value.is_empty());
    let encrypted = flavour == Flavour::Docker && (set("DOCKER_TLS_VERIFY") || set("DOCKER_TLS"));
    // INVARIANT: who wants a connection that others cannot read never gets one that they can.
    let way = Way::parse(&at).filter(|way| !(encrypted && matches!(way, Way::Tcp(_))));
    way.ok_or(BackendError::NoWay {
        engine: flavour.engine(),
        at,
    })
}

/// `DOCKER_HOST`, the context that `DOCKER_CONTEXT` or the client's settings name, the usual place.
fn docker(around: &Surroundings<'_>) -> String {
    const USUAL: &str = "unix:///var/run/docker.sock";
    let set = |name: &str| (around.variable)(name).filter(|value| !value.is_empty());
    if let Some(host) = set("DOCKER_HOST") {
        return host;
    }
    let settings = set("DOCKER_CONFIG").map(PathBuf::from);
    let settings = settings.or_else(|| Some(PathBuf::from(set("HOME")?).join(".docker")));
    let Some(settings) = settings else {
        return USUAL.to_owned();
    };
    let json =
        |path: PathBuf| -> Option<Value> { serde_json::from_str(&(around.read)(&path)?).ok() };
    let named = set("DOCKER_CONTEXT").or_else(|| {
        let own = json(settings.join("config.json"))?;
        own["currentContext"].as_str().map(str::to_owned)
    });
    let Some(context) = named.filter(|name| name != "default") else {
        return USUAL.to_owned();
    };
    // The client keeps a context in a directory named by the hash of its name.
    let directory = hex(&Sha256::digest(context.as_bytes()));
    let meta = settings.join("contexts/meta").join(&directory);
    let meta = json(meta.join("meta.json"));
    let told = meta.as_ref().map(|meta| &meta["Endpoints"]["docker"]);
    let host = told.and_then(|told| told["Host"].as_str());
    let has_keys = (around.exists)(&settings.join("contexts/tls").join(&directory));
    match host {
        Some(host) if !(has_keys && host.starts_with("tcp:")) => host.to_owned(),
        // One that is not there, and one with keys for a connection that nobody else reads.
        _ => format!("context:{context}"),
    }
}

/// `CONTAINER_HOST`, the user's own service, the machine's.
fn podman(around: &Surroundings<'_>) -> String {
    let set = |name: &str| (around.variable)(name).filter(|value| !value.is_empty());
    if let Some(host) = set("CONTAINER_HOST") {
        return host;
    }
    let own = set("XDG_RUNTIME_DIR").map(|at| format!("{at}/podman/podman.sock"));
    let own = own.filter(|path| (around.exists)(Path::new(path)));
    format!(
        "unix://{}",
        own.as_deref().unwrap_or("/run/podman/podman.sock")
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// `printf %s keyed | sha256sum`
    const KEYED: &str = "78da267198b7f49fd64cdfdfaf3e61513a30c5df0c859da77af27a0f591cdfb7";

    fn found(flavour: Flavour, env: &[(&str, &str)], files: &[(String, &str)]) -> String {
        let env: BTreeMap<&str, &str> = env.iter().copied().collect();
        let around = Surroundings {
            variable: &|name| env.get(name).map(|&value| value.to_owned()),
            read: &|path| {
                let file = files.iter().find(|(name, _)| Path::new(name) == path)?;
                Some(file.1.to_owned())
            },
            exists: &|path| path.starts_with("/run/user/7") || path.ends_with(KEYED),
        };
        match way(flavour, &around) {
            Ok(way) => way.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn an_engine_is_where_its_own_client_finds_it() {
        let docker =
            |env: &[(&str, &str)], files: &[(String, &str)]| found(Flavour::Docker, env, files);
        assert_eq!(docker(&[], &[]), "unix:///var/run/docker.sock");
        assert_eq!(
            docker(&[("DOCKER_HOST", "unix:///x/s")], &[]),
            "unix:///x/s"
        );
        assert_eq!(
            docker(&[("DOCKER_HOST", "")], &[]),
            "unix:///var/run/docker.sock"
        );
        let far = docker(&[("DOCKER_HOST", "tcp://10.0.0.1:2375")], &[]);
        assert_eq!(far, "tcp://10.0.0.1:2375");
        let keys = [
            ("DOCKER_HOST", "tcp://10.0.0.1:2376"),
            ("DOCKER_TLS_VERIFY", "1"),
        ];
        assert_eq!(
            docker(&keys, &[]),
            "the Docker engine at `tcp://10.0.0.1:2376` cannot be reached by us"
        );
        // `printf %s other | sha256sum`
        let other = "/h/.docker/contexts/meta/d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa/meta.json";
        let files = [
            (
                "/h/.docker/config.json".to_owned(),
                r#"{"currentContext":"other"}"#,
            ),
            (
                other.to_owned(),
                r#"{"Endpoints":{"docker":{"Host":"unix:///o/s"}}}"#,
            ),
        ];
        assert_eq!(docker(&[("HOME", "/h")], &files), "unix:///o/s");
        let keyed = [(
            format!("/h/.docker/contexts/meta/{KEYED}/meta.json"),
            r#"{"Endpoints":{"docker":{"Host":"tcp://10.0.0.1:2376"}}}"#,
        )];
        assert_eq!(
            docker(&[("HOME", "/h"), ("DOCKER_CONTEXT", "keyed")], &keyed),
            "the Docker engine at `context:keyed` cannot be reached by us"
        );
        assert_eq!(
            docker(&[("HOME", "/h"), ("DOCKER_CONTEXT", "default")], &files),
            "unix:///var/run/docker.sock"
        );
        let gone = docker(&[("HOME", "/h"), ("DOCKER_CONTEXT", "gone")], &files);
        assert_eq!(
            gone,
            "the Docker engine at `context:gone` cannot be reached by us"
        );
        let podman = |env: &[(&str, &str)]| found(Flavour::Podman, env, &[]);
        assert_eq!(podman(&[]), "unix:///run/podman/podman.sock");
        assert_eq!(
            podman(&[("XDG_RUNTIME_DIR", "/run/user/7")]),
            "unix:///run/user/7/podman/podman.sock"
        );
        assert_eq!(
            podman(&[("XDG_RUNTIME_DIR", "/run/user/8")]),
            "unix:///run/podman/podman.sock"
        );
    }
}
