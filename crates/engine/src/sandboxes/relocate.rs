//! Another execution for the same workspace: another backend, another image. The layers stay where they
//! are.

use ringfence_model::environment::NamedBy;
use ringfence_model::policy::Line;
use ringfence_model::sandbox::EndReason;

use super::{Host, stop};
use crate::backend::{BackendError, Choice};
use crate::environment::ground;
use crate::error::Error;
use crate::ids::SandboxId;
use crate::sandbox::SandboxError;

/// Where it goes.
#[derive(Clone, Debug, Default)]
pub struct Destination {
    pub backend: Choice,
    /// Another image; `host` for none. `None`: as it was.
    pub image: Option<Line>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocated {
    pub backend: String,
    /// What names the image there, where there is one.
    pub image: Option<String>,
    /// Processes that ended with the execution before.
    pub processes: u64,
}

/// How what stands on an image says so.
const IMAGES: [&str; 2] = ["images/", "foreign/"];

/// Ends the execution, and has the next one begin elsewhere.
pub fn relocate(host: &Host, id: SandboxId, to: &Destination) -> Result<Relocated, Error> {
    let shaping = host.shape(id)?;
    let mut record = host.store.sandbox(id)?;
    let detail = &mut record.detail;
    let backend = to.backend.choose(&host.home);
    let backend = backend.map_err(SandboxError::Backend)?;
    let environment = &mut detail.policy.environment;
    if let Some(image) = &to.image {
        environment.set_image(image.clone(), NamedBy::User);
    }
    let mut env = Vec::new();
    let stands_on = match environment.image() {
        None => None,
        Some(name) => Some(match backend.image(name) {
            Some(found) => {
                let found = found.map_err(SandboxError::Backend)?;
                env = found.env;
                format!("{}{}", IMAGES[1], found.id)
            }
            None => {
                let found = ground::here(&host.home, &host.store, name)?;
                env = found.variables();
                format!("{}{}", IMAGES[0], found.image.digest)
            }
        }),
    };
    let is_image = |own: &String| IMAGES.iter().any(|kind| own.starts_with(kind));
    let before = detail.stands_on.iter().find(|own| is_image(own)).cloned();
    let made = |own: &String| own.starts_with("environments/");
    if before != stands_on && detail.stands_on.iter().any(made) {
        // What a setup made of one image is of no use to another.
        return Err(SandboxError::Backend(BackendError::DoesNotHold {
            backend: backend.name(),
            what: "what a setup made on another image; make a sandbox there instead",
        })
        .into());
    }
    detail.stands_on.retain(|own| !is_image(own));
    detail.stands_on.extend(stands_on.clone());
    // HOSTILE: those of an image are its maker's, and count less than any.
    env.retain(|(name, _)| {
        !ground::is_ours(name.as_bytes()) && !detail.env.iter().any(|(own, _)| own == name)
    });
    detail.env.splice(0..0, env);
    backend.name().clone_into(&mut detail.backend);
    let processes = stop::end(host, id, EndReason::Replaced)?;
    let detail = &record.detail;
    host.store.set_held(id, detail)?;
    drop(shaping);
    Ok(Relocated {
        backend: detail.backend.clone(),
        image: stands_on.and_then(|own| Some(own.split_once('/')?.1.to_owned())),
        processes,
    })
}
