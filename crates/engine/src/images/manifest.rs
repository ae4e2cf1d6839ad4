//! Manifests and indexes, of OCI and of Docker.
//!
//! HOSTILE: a registry sends them. Their digest was checked before they are read here.

use ringfence_model::image::Digest;
use serde::Deserialize;

use super::config::{architecture, bounded};

/// What a registry is asked for.
pub(super) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";
/// BOUND: as registries have it.
pub(super) const BYTES: u64 = 4 << 20;
const MANIFESTS: usize = 1000;
/// BOUND: a layer as it is sent.
const LAYER_BYTES: u64 = 64 << 30;

/// What is said of a blob before it is there.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    pub annotations: Option<std::collections::BTreeMap<String, String>>,
}

impl Descriptor {
    /// Whether it says for which machine it is.
    pub fn is_of_machine(&self) -> bool {
        self.platform.is_some()
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Platform {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
}

/// Both kinds of documents are told apart by what they have.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    schema_version: u32,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
}

#[derive(Debug)]
pub(super) enum Manifest {
    Image {
        config: Descriptor,
        /// The lowest first.
        layers: Vec<Descriptor>,
    },
    Index(Vec<Descriptor>),
}

pub(super) fn read(bytes: &[u8]) -> Result<Manifest, String> {
    let document: Document = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    match document {
        Document {
            schema_version: 1, ..
        } => Err("it is of the first schema, which names no digests of what it unpacks to".into()),
        Document {
            config: Some(config),
            layers: Some(layers),
            manifests: None,
            ..
        } => {
            bounded(layers.len())?;
            if layers.iter().any(|layer| layer.size > LAYER_BYTES) {
                return Err("a layer of it is too large".into());
            }
            let away = |layer: &Descriptor| layer.media_type.contains("foreign");
            if layers.iter().any(away) {
                return Err("a layer of it is kept elsewhere, which is for Windows".into());
            }
            Ok(Manifest::Image { config, layers })
        }
        Document {
            config: None,
            layers: None,
            manifests: Some(manifests),
            ..
        } if manifests.len() <= MANIFESTS => Ok(Manifest::Index(manifests)),
        _ => Err("it is neither a manifest nor an index".into()),
    }
}

/// The manifest of an index that is made for this machine, else what there is.
pub(super) fn choose(manifests: &[Descriptor]) -> Result<&Descriptor, String> {
    let made_for = |descriptor: &Descriptor| match &descriptor.platform {
        Some(platform) => format!("{}/{}", platform.os, platform.architecture),
        None => "unknown/unknown".to_owned(),
    };
    let here = format!("linux/{}", architecture());
    if let Some(found) = manifests.iter().find(|one| made_for(one) == here) {
        return Ok(found);
    }
    // An index of one that says nothing is that one; its configuration is looked at all the same.
    if let [only] = manifests
        && only.platform.is_none()
    {
        return Ok(only);
    }
    let mut others: Vec<String> = manifests
        .iter()
        .map(made_for)
        .filter(|text| text != "unknown/unknown")
        .collect();
    others.sort();
    others.dedup();
    others.truncate(20);
    Err(if others.is_empty() {
        "nothing at all".to_owned()
    } else {
        others.join(", ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(number: u8, platform: Option<(&str, &str)>) -> String {
        let digest = Digest::from_bytes([number; 32]);
        let platform = platform.map_or(String::new(), |(os, architecture)| {
            format!(r#","platform":{{"os":"{os}","architecture":"{architecture}"}}"#)
        });
        format!(r#"{{"mediaType":"x","digest":"{digest}","size":{number}{platform}}}"#)
    }

    fn index(ones: &[String]) -> Vec<Descriptor> {
        let text = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, ones.join(","));
        match read(text.as_bytes()).unwrap() {
            Manifest::Index(manifests) => manifests,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_manifest_for_this_machine_is_chosen() {
        let ours = one(3, Some(("linux", architecture())));
        let other = one(1, Some(("linux", "pdp11")));
        let windows = one(2, Some(("windows", architecture())));
        let all = index(&[other.clone(), windows.clone(), ours]);
        assert_eq!(choose(&all).unwrap().size, 3);
        let attestation = one(4, Some(("unknown", "unknown")));
        let error = choose(&index(&[windows, other, attestation])).unwrap_err();
        let expected = format!("linux/pdp11, windows/{}", architecture());
        assert_eq!(error, expected);
        assert_eq!(choose(&index(&[one(5, None)])).unwrap().size, 5);
        assert!(choose(&index(&[])).is_err());
        assert!(choose(&index(&[one(5, None), one(6, None)])).is_err());
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        let (config, layer) = (one(1, None), one(2, None));
        let good = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{layer}]}}"#);
        assert!(matches!(
            read(good.as_bytes()).unwrap(),
            Manifest::Image { layers, .. } if layers.len() == 1
        ));
        let many = vec![layer.clone(); ringfence_jail::plan::MOST_LAYERS + 1].join(",");
        for bad in [
            "{}".to_owned(),
            "[]".to_owned(),
            good.replace(":2,", ":1,"),
            good.replace("sha256:", "md5:"),
            good.replace(
                "\"x\"",
                "\"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip\"",
            ),
            good.replace(&layer, &many),
            good.replace("\"size\":2", "\"size\":18446744073709551615"),
            // One document that would be two things.
            good.replace("\"layers\"", "\"manifests\":[],\"layers\""),
        ] {
            assert!(read(bad.as_bytes()).is_err(), "{bad:.200}");
        }
    }
}
