//! Copies of a sandbox that share all that is equal.

use super::Host;
use super::create::{expiry, make};
use super::{open, seal, settle};
use crate::error::Error;
use crate::fail;
use crate::ids::SandboxId;
use crate::store::{NewSandbox, SandboxDetail};

/// BOUND: one commit holds them all.
pub const MOST: usize = 10_000;

/// Where copies begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Point {
    /// The present state.
    #[default]
    Now,
    Checkpoint(String),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct ForkRequest {
    pub count: usize,
    pub at: Point,
    pub tag: Option<String>,
    pub ttl_seconds: Option<u64>,
}

/// Makes copies. The sandbox itself goes on as it was.
pub fn fork(host: &Host, id: SandboxId, request: &ForkRequest) -> Result<Vec<SandboxId>, Error> {
    if request.count == 0 || request.count > MOST {
        return Err(Error::BadCount {
            count: request.count,
            most: MOST,
        });
    }
    let _shaping = host.shape(id)?;
    let record = open::usable(host, id)?;
    let head = match &request.at {
        Point::Now => seal::seal(host, &record, None, "fork")?.layer,
        Point::Checkpoint(name) => host.store.checkpoint(id, name)?.layer,
    };
    let mut new = Vec::with_capacity(request.count);
    for _ in 0..request.count {
        new.push(NewSandbox {
            id: SandboxId::random()?,
            name: None,
            tag: request.tag.clone().or_else(|| record.tag.clone()),
            base: record.base,
            head,
            expires_us: expiry(request.ttl_seconds),
            detail: SandboxDetail {
                forked_from: Some(id),
                ended: None,
                mounted: Vec::new(),
                ..record.detail.clone()
            },
        });
    }
    let made = make(host, &new, "fork");
    // Of a seal by copy; what resists is cleared by whoever comes next.
    let cleared = host.store.clear_intent(id);
    made?;
    cleared?;
    fail::point("fork:cleared");
    settle::later(host, id);
    Ok(new.into_iter().map(|sandbox| sandbox.id).collect())
}
