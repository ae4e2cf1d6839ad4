//! The image that a sandbox stands on: found or pulled, and held while it is used.

use std::sync::Arc;

use ringfence_jail::plan::{ImageRoot, Root};
use ringfence_model::ByteText;
use ringfence_model::environment::NamedBy;
use ringfence_model::image::{Digest, Reference};
use ringfence_model::limits::HumanBytes;
use ringfence_model::policy::Effective;

use crate::attend::Console;
use crate::error::Error;
use crate::home::Home;
use crate::images::{self, Event, Hold, Image, ImageError, LayerSize, Progress, PullOptions};
use crate::store::Store;

/// An image that nobody removes meanwhile.
#[derive(Clone, Debug)]
pub struct Ground {
    pub image: Image,
    _hold: Arc<Hold>,
}

/// The image that a policy names, pulled where it is not here. `None`: the host's own system.
pub fn find(
    home: &Home,
    store: &Store,
    policy: &Effective,
    console: &mut dyn Console,
) -> Result<Option<Ground>, Error> {
    match policy.environment.image() {
        None => Ok(None),
        Some(reference) => {
            let image = match images::find(home, store, reference) {
                Err(ImageError::NotHere { .. }) => {
                    let options = pull_options(policy, reference)?;
                    let mut told = Told::new(console);
                    images::pull(home, store, reference, options, &mut told)?
                }
                found => found?,
            };
            Ok(Some(hold(home, store, image)?))
        }
    }
}

/// How an image that is not here may be had.
///
/// HOSTILE: a repository names what it likes. The host connects to no registry for it that the user
/// has not named, and there it gets what anybody gets.
fn pull_options<'p>(policy: &'p Effective, reference: &str) -> Result<PullOptions<'p>, ImageError> {
    // `sha256:…` alone would be read as the tag of an image with that name.
    if reference.parse::<Digest>().is_ok() {
        return Err(ImageError::NotHere {
            reference: reference.to_owned(),
        });
    }
    let name: Reference = reference.parse()?;
    let by = policy.environment.image_by;
    if by == NamedBy::Others && !policy.sources.names_registry(name.host()) {
        let line = policy.environment.image.as_ref();
        return Err(ImageError::NotNamed {
            by: line.map(|line| line.from.to_string()).unwrap_or_default(),
            reference: name.familiar(),
            registry: name.host().to_owned(),
        });
    }
    Ok(PullOptions {
        anonymous: by == NamedBy::Others,
        registries: &policy.sources.registries,
        ..PullOptions::default()
    })
}

/// One that must be here, by a name or its digest.
pub fn here(home: &Home, store: &Store, reference: &str) -> Result<Ground, Error> {
    Ok(hold(home, store, images::find(home, store, reference)?)?)
}

/// One that must be here, by its digest.
pub fn of_digest(home: &Home, store: &Store, digest: &str) -> Result<Ground, Error> {
    here(home, store, digest)
}

fn hold(home: &Home, store: &Store, image: Image) -> Result<Ground, ImageError> {
    let hold = images::hold(home, store, &image)?;
    Ok(Ground {
        image,
        _hold: Arc::new(hold),
    })
}

impl Ground {
    /// As the root of a sandbox.
    pub fn root(&self) -> Root {
        Root::Image(ImageRoot {
            lower: self.image.layers.clone(),
            setup: None,
            writable: None,
        })
    }

    /// Variables of the image, which count less than any other.
    ///
    /// HOSTILE: they are its maker's. Who the agent is and what we tell it is not for an image to
    /// say.
    pub fn variables(&self) -> Vec<(ByteText, ByteText)> {
        let env = self.image.config.env.iter();
        env.filter(|(name, _)| !is_ours(name.as_bytes()))
            .cloned()
            .collect()
    }
}

/// Whether a variable says who the agent is, or what we tell it.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    const OURS: [&[u8]; 3] = [b"HOME", b"USER", b"LOGNAME"];
    OURS.contains(&name) || name.starts_with(b"RINGFENCE")
}

/// Tells how far a pull is, as a step of the run.
struct Told<'a> {
    console: &'a mut dyn Console,
    layers: Vec<LayerSize>,
    got: Vec<u64>,
}

impl<'a> Told<'a> {
    fn new(console: &'a mut dyn Console) -> Self {
        console.step("image");
        Self {
            console,
            layers: Vec::new(),
            got: Vec::new(),
        }
    }

    fn tell(&mut self) {
        let missing = self.layers.iter().filter(|layer| !layer.here);
        let all: u64 = missing.map(|layer| layer.bytes).sum();
        let got: u64 = self.got.iter().sum();
        let (got, all) = (HumanBytes(got.min(all)), HumanBytes(all));
        self.console.step(&format!("image: {got} of {all}"));
    }
}

impl Progress for Told<'_> {
    fn happened(&mut self, event: Event) {
        match event {
            Event::Found { layers, .. } => {
                self.got = vec![0; layers.len()];
                self.layers = layers;
                self.tell();
            }
            Event::Downloaded { layer, bytes } => {
                if let Some(got) = self.got.get_mut(layer) {
                    *got = bytes;
                }
                self.tell();
            }
            Event::Waiting => self.console.step("image: another process is at it"),
            Event::Retrying { why, seconds } => {
                self.console
                    .step(&format!("image: {why}; again in {seconds} s"));
            }
            Event::Unpacking { .. } => self.console.step("image: unpacking"),
            Event::Unpacked { .. } | Event::Noted(_) | Event::Renamed { .. } => {}
        }
    }
}
