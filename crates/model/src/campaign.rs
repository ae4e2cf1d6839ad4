//! Where a task of a campaign is in its life, and what it came to.
//!
//! ```text
//! waiting ─▶ running ─▶ passed         it changed something, and every check holds
//!    ▲          │  └──▶ exhausted      it changed something, and not every check holds
//!    │          │  └──▶ no_change      the agent succeeded and changed nothing
//!    │          │  └──▶ failed         the agent or one of its bounds
//!    │          │  └──▶ base_moved     the folder is not what the task was made for
//!    │          │  └──▶ infrastructure ours, several times
//!    │          │  └──▶ cancelled      somebody stopped the campaign
//!    └──────────┘ skipped              a budget was spent
//!                 dropped              the plan has it no more
//! ```

use serde::{Deserialize, Serialize};

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    Waiting,
    Running,
    Passed,
    Exhausted,
    NoChange,
    Failed,
    BaseMoved,
    Infrastructure,
    Cancelled,
    Skipped,
    Dropped,
}

impl TaskState {
    pub const ALL: [Self; 11] = [
        Self::Waiting,
        Self::Running,
        Self::Passed,
        Self::Exhausted,
        Self::NoChange,
        Self::Failed,
        Self::BaseMoved,
        Self::Infrastructure,
        Self::Cancelled,
        Self::Skipped,
        Self::Dropped,
    ];

    /// The word of it in the store and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Passed => "passed",
            Self::Exhausted => "exhausted",
            Self::NoChange => "no_change",
            Self::Failed => "failed",
            Self::BaseMoved => "base_moved",
            Self::Infrastructure => "infrastructure",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
            Self::Dropped => "dropped",
        }
    }

    /// For a person.
    pub fn words(self) -> &'static str {
        match self {
            Self::NoChange => "no change",
            Self::BaseMoved => "base moved",
            other => other.as_str(),
        }
    }

    /// What it means, for who sees it the first time.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Waiting => "not begun yet",
            Self::Running => "under way",
            Self::Passed => "changed something, and every check holds",
            Self::Exhausted => "changed something, and not every check holds",
            Self::NoChange => "the agent succeeded and changed nothing",
            Self::Failed => "the agent did not succeed",
            Self::BaseMoved => "the folder is not what the task was made for",
            Self::Infrastructure => "the host could not run it",
            Self::Cancelled => "stopped before its end",
            Self::Skipped => "not begun: a budget is spent",
            Self::Dropped => "the plan has it no more",
        }
    }

    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }

    /// Nothing more happens to it by itself.
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }

    /// It has a result that is never made twice by itself.
    pub fn is_finished(self) -> bool {
        matches!(
            self,
            Self::Passed | Self::Exhausted | Self::NoChange | Self::Failed
        )
    }
}

/// What a task came to, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Figures {
    pub changed_files: u64,
    pub insertions: u64,
    pub deletions: u64,
    pub checks: u64,
    pub checks_held: u64,
    /// From its beginning to its end, with checks.
    pub duration_ms: u64,
    /// Files of other tasks that it changed.
    pub of_others: u64,
    /// Files of no task that it changed or made.
    pub of_no_task: u64,
    /// How many attempts it is the best of; 0 where there is only one.
    pub best_of: u64,
    #[serde(skip_serializing_if = "Spent::is_nothing")]
    pub spent: Spent,
}

impl Figures {
    /// What it changed that is not its own, where it did.
    pub fn strayed(&self) -> Option<String> {
        let files = |count: u64, of: &str| match count {
            0 => None,
            1 => Some(format!("1 file of {of}")),
            _ => Some(format!("{count} files of {of}")),
        };
        let parts = [
            files(self.of_others, "other tasks"),
            files(self.of_no_task, "no task"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| format!("also changed {}", parts.join(" and ")))
    }
}

/// What agents say that they used. Their word, and only for budgets and tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    pub tokens: u64,
    /// Millionths of a dollar.
    pub cost_micros: u64,
}

impl Spent {
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// HOSTILE: an agent says any number.
    pub fn plus(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            cost_micros: self.cost_micros.saturating_add(other.cost_micros),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_back() {
        for state in TaskState::ALL {
            assert_eq!(TaskState::parse(state.as_str()), Some(state));
            let json = serde_json::to_value(state).unwrap();
            assert_eq!(json, state.as_str());
            assert!(!state.meaning().is_empty() && !state.words().contains('_'));
            assert!(state.is_over() || !state.is_finished());
        }
        assert_eq!(TaskState::parse("eaten"), None);
    }

    #[test]
    fn whatever_agents_say_sums_are_sums() {
        let much = Spent {
            tokens: u64::MAX,
            cost_micros: 1,
        };
        let sum = much.plus(much);
        assert_eq!((sum.tokens, sum.cost_micros), (u64::MAX, 2));
    }
}
