//! What a backend was seen to enforce, by names and values that can be asked for.
//!
//! Each name has its values from the weakest to the strongest: who asks for one is content with more.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Something that backends differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guarantee {
    /// Whose kernel the agent talks to.
    Kernel,
    /// What is recorded of every exec and write.
    Observation,
    /// What can be reached: nothing, or what rules of a policy allow.
    Network,
    Memory,
    Processes,
    /// Whether parts of the folder can be held otherwise than the rest.
    Files,
    /// The second wall in the kernel.
    Landlock,
}

impl Guarantee {
    pub const ALL: [Self; 7] = [
        Self::Kernel,
        Self::Observation,
        Self::Network,
        Self::Memory,
        Self::Processes,
        Self::Files,
        Self::Landlock,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Observation => "observation",
            Self::Network => "network",
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::Files => "files",
            Self::Landlock => "landlock",
        }
    }

    /// From the weakest to the strongest.
    pub fn values(self) -> &'static [&'static str] {
        match self {
            Self::Kernel => &["shared", "separate"],
            Self::Observation => &["absent", "verified"],
            Self::Network => &["offline", "gate"],
            Self::Memory | Self::Processes => &["absent", "watched", "hard"],
            Self::Files => &["whole", "areas"],
            Self::Landlock => &["absent", "partial", "full"],
        }
    }
}

/// One that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirement {
    pub guarantee: Guarantee,
    value: usize,
}

impl Requirement {
    /// As `kernel=separate`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, value) = text.split_once('=')?;
        let named = |guarantee: &Guarantee| guarantee.as_str() == name.trim();
        let guarantee = Guarantee::ALL.into_iter().find(named)?;
        let value = guarantee
            .values()
            .iter()
            .position(|own| *own == value.trim())?;
        Some(Self { guarantee, value })
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.guarantee.values()[self.value];
        write!(f, "{}={value}", self.guarantee.as_str())
    }
}

/// All that was seen of one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarantees(BTreeMap<Guarantee, String>);

impl Guarantees {
    /// Nothing was seen.
    pub fn none() -> Self {
        let weakest = |guarantee: Guarantee| (guarantee, guarantee.values()[0].to_owned());
        Self(Guarantee::ALL.map(weakest).into())
    }

    /// INVARIANT: only values of the guarantee are kept; another one is the weakest.
    pub fn set(&mut self, guarantee: Guarantee, value: &str) {
        let known = guarantee.values().iter().find(|own| **own == value);
        let value = known.unwrap_or(&guarantee.values()[0]);
        self.0.insert(guarantee, (*value).to_owned());
    }

    /// What was not seen is not there.
    pub fn get(&self, guarantee: Guarantee) -> &str {
        let seen = self.0.get(&guarantee).map(String::as_str);
        seen.unwrap_or(guarantee.values()[0])
    }

    pub fn has(&self, requirement: Requirement) -> bool {
        let guarantee = requirement.guarantee;
        let own = self.get(guarantee);
        let own = guarantee.values().iter().position(|value| *value == own);
        own.is_some_and(|own| own >= requirement.value)
    }
}

impl fmt::Display for Guarantees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, guarantee) in Guarantee::ALL.into_iter().enumerate() {
            let separator = if number > 0 { " " } else { "" };
            let value = self.get(guarantee);
            write!(f, "{separator}{}={value}", guarantee.as_str())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_less_is_content_with_more() {
        let mut seen = Guarantees::default();
        seen.set(Guarantee::Memory, "watched");
        seen.set(Guarantee::Kernel, "made up");
        for (asked, has) in [
            ("memory=absent", true),
            ("memory=watched", true),
            ("memory=hard", false),
            ("kernel=shared", true),
            ("kernel=separate", false),
            ("observation=verified", false),
            (" files = whole ", true),
        ] {
            let requirement = Requirement::parse(asked).expect(asked);
            assert_eq!(seen.has(requirement), has, "{asked}");
        }
        for bad in ["", "kernel", "kernel=", "kernel=own", "colour=red", "=hard"] {
            assert_eq!(Requirement::parse(bad), None, "{bad}");
        }
    }
}
