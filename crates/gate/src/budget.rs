//! Budgets of rules: what everything that a rule allows may use together.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use ringfence_model::policy::network::{Budget, NetworkRule};
use tokio::time::Instant;

/// What was used, by rule. A rule that is given again goes on where it was.
#[derive(Default)]
pub(crate) struct Budgets(RefCell<HashMap<String, Rc<Used>>>);

#[derive(Default)]
struct Used {
    /// Begun in the minute that began then.
    minute: Cell<Option<(Instant, u32)>>,
    sent: Cell<u64>,
    received: Cell<u64>,
}

/// A budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UsedUp {
    #[error("{0} in a minute are allowed")]
    Rate(u32),
    #[error("{0} bytes may be sent")]
    Upload(u64),
    #[error("{0} bytes may be received")]
    Download(u64),
    #[error("a connection may last {0} seconds")]
    Seconds(u64),
}

impl Budgets {
    /// One request or connection begins.
    pub(crate) fn begin(&self, rule: &NetworkRule) -> Result<Meter, UsedUp> {
        let key = format!("{rule} {}", rule.from);
        let used = self.0.borrow_mut().entry(key).or_default().clone();
        let now = Instant::now();
        if let Some(most) = rule.budget.per_minute {
            let (since, count) = match used.minute.get() {
                Some((since, count)) if now - since < Duration::from_secs(60) => (since, count),
                _ => (now, 0),
            };
            if count >= most {
                return Err(UsedUp::Rate(most));
            }
            used.minute.set(Some((since, count + 1)));
        }
        Ok(Meter {
            budget: rule.budget.clone(),
            began: now,
            used,
        })
    }
}

/// Counts for one connection or request against its rule.
#[derive(Clone)]
pub(crate) struct Meter {
    budget: Budget,
    began: Instant,
    used: Rc<Used>,
}

impl Meter {
    /// How many bytes may still be sent to the host.
    pub(crate) fn may_send(&self) -> Result<u64, UsedUp> {
        left(self.budget.upload_bytes, &self.used.sent, UsedUp::Upload)
    }

    pub(crate) fn may_receive(&self) -> Result<u64, UsedUp> {
        left(
            self.budget.download_bytes,
            &self.used.received,
            UsedUp::Download,
        )
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.used
            .sent
            .set(self.used.sent.get().saturating_add(bytes));
    }

    pub(crate) fn received(&self, bytes: u64) {
        let received = self.used.received.get();
        self.used.received.set(received.saturating_add(bytes));
    }

    /// Waits until the time of the connection is over; for ever where it has no bound.
    pub(crate) async fn over(&self) -> UsedUp {
        match self.budget.seconds {
            Some(seconds) => {
                tokio::time::sleep_until(self.began + Duration::from_secs(seconds)).await;
                UsedUp::Seconds(seconds)
            }
            None => std::future::pending().await,
        }
    }
}

fn left(most: Option<u64>, used: &Cell<u64>, up: fn(u64) -> UsedUp) -> Result<u64, UsedUp> {
    match most {
        None => Ok(u64::MAX),
        Some(most) if used.get() >= most => Err(up(most)),
        Some(most) => Ok(most - used.get()),
    }
}
