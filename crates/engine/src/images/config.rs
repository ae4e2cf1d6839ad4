//! What an image says of how things are run in it.
//!
//! HOSTILE: it says what it likes. What cannot be used is refused here, so that nobody meets it
//! later.

use ringfence_jail::plan::MOST_LAYERS;
use ringfence_model::ByteText;
use ringfence_model::image::Digest;
use serde::{Deserialize, Serialize};

/// BOUND: as many as nobody needs.
const VARIABLES: usize = 1000;
const WORDS: usize = 1000;

/// What runs on an image are told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    pub env: Vec<(ByteText, ByteText)>,
    pub user: String,
    pub working_dir: ByteText,
    pub entrypoint: Vec<ByteText>,
    pub cmd: Vec<ByteText>,
    pub architecture: String,
    pub os: String,
}

/// The document as images have it; what is not needed is not read.
#[derive(Debug, Deserialize)]
struct Document {
    architecture: String,
    os: String,
    #[serde(default)]
    config: Option<Inner>,
    rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
struct Inner {
    #[serde(default, rename = "Env")]
    env: Option<Vec<String>>,
    #[serde(default, rename = "User")]
    user: Option<String>,
    #[serde(default, rename = "WorkingDir")]
    working_dir: Option<String>,
    #[serde(default, rename = "Entrypoint")]
    entrypoint: Option<Vec<String>>,
    #[serde(default, rename = "Cmd")]
    cmd: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

/// The configuration, and the diff ids of the layers, the lowest first.
pub(super) fn read(bytes: &[u8]) -> Result<(ImageConfig, Vec<Digest>), String> {
    let document: Document = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let inner = document.config.unwrap_or_default();
    let env = inner.env.unwrap_or_default();
    let (entrypoint, cmd) = (
        inner.entrypoint.unwrap_or_default(),
        inner.cmd.unwrap_or_default(),
    );
    if env.len() > VARIABLES || entrypoint.len() + cmd.len() > WORDS {
        return Err("it has too many variables or words".to_owned());
    }
    bounded(document.rootfs.diff_ids.len())?;
    let all = env.iter().chain(&entrypoint).chain(&cmd);
    if all
        .chain(&inner.working_dir)
        .any(|text| text.contains('\0'))
    {
        return Err("a text in it has a zero byte".to_owned());
    }
    let words = |words: Vec<String>| words.iter().map(|w| ByteText::from(w.as_str())).collect();
    let config = ImageConfig {
        // What has no name is no variable.
        env: env
            .iter()
            .filter_map(|pair| pair.split_once('='))
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        user: inner.user.unwrap_or_default(),
        working_dir: inner.working_dir.as_deref().unwrap_or_default().into(),
        entrypoint: words(entrypoint),
        cmd: words(cmd),
        architecture: document.architecture,
        os: document.os,
    };
    Ok((config, document.rootfs.diff_ids))
}

/// BOUND: what cannot be the root of a sandbox is not taken.
pub(super) fn bounded(layers: usize) -> Result<(), String> {
    if layers > MOST_LAYERS {
        Err(format!("it has more than {MOST_LAYERS} layers"))
    } else {
        Ok(())
    }
}

/// This machine, as images call it.
pub(super) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read_and_bounded() {
        let diff = Digest::from_bytes([7; 32]);
        let text = format!(
            r#"{{"architecture":"amd64","os":"linux","created":"x","config":{{"Env":["A=b=c","BAD","=x"],
            "Cmd":["sh"],"Entrypoint":null,"WorkingDir":"/srv","User":"1000:5","Volumes":{{}}}},
            "rootfs":{{"type":"layers","diff_ids":["{diff}"]}},"history":[]}}"#
        );
        let (config, diffs) = read(text.as_bytes()).unwrap();
        assert_eq!(diffs, [diff]);
        assert_eq!(config.env, [("A".into(), "b=c".into())]);
        assert_eq!(config.cmd, [ByteText::from("sh")]);
        assert_eq!(
            (config.user.as_str(), config.os.as_str()),
            ("1000:5", "linux")
        );
        assert_eq!(config.working_dir, "/srv".into());
        let stored = serde_json::to_string(&config).unwrap();
        assert_eq!(
            serde_json::from_str::<ImageConfig>(&stored).unwrap(),
            config
        );

        let many = vec!["\"A=b\""; VARIABLES + 1].join(",");
        for bad in [
            "{}".to_owned(),
            text.replace("sha256", "md5"),
            text.replace("b=c", "b\\u0000"),
            text.replace("\"A=b=c\"", &many),
        ] {
            assert!(read(bad.as_bytes()).is_err(), "{bad:.200}");
        }
    }
}
