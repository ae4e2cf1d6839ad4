//! The disk bound of a sandbox: its sealed layers count for it as well as its top.

use super::Host;
use crate::error::Error;
use crate::store::{LayerRecord, SandboxRecord};
use crate::watch::{DiskWatch, Seen};

/// A sandbox that is over its disk bound, so many times, takes no more.
pub(super) fn refuse_over(host: &Host, record: &SandboxRecord, times: u64) -> Result<(), Error> {
    let mut limits = record.detail.limits.clone();
    limits.disk_bytes = limits.disk_bytes.map(|n| n.saturating_mul(times));
    limits.disk_inodes = limits.disk_inodes.map(|n| n.saturating_mul(times));
    let left = LayerRecord::left(&host.store.stack(record.head)?, &limits);
    let mut disk = DiskWatch::new(&host.places(record.id).upper(), &left)?;
    match disk.count() {
        Seen::Over(_, detail) => Err(Error::OverBound {
            sandbox: record.id.to_string(),
            detail,
        }),
        Seen::Fine | Seen::Unaccounted => Ok(()),
    }
}
