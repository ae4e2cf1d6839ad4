//! What a sandbox may spend, and how firmly this host can hold it to that.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The bounds of one sandbox. `None` means that the bound was switched off by name (`none`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub time_seconds: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub processes: u64,
    pub cpu_seconds: Option<u64>,
    pub open_files: u64,
    pub file_bytes: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub disk_inodes: Option<u64>,
    pub output_bytes: Option<u64>,
}

const GIB: u64 = 1 << 30;

impl Limits {
    /// The defaults on a host with this much memory.
    pub fn for_host(host_memory_bytes: u64) -> Self {
        Self {
            // BOUND: a working day; a forgotten sandbox must not live for ever.
            time_seconds: Some(8 * 3600),
            // BOUND: half of the machine, so that the host stays usable; never below 1 GiB.
            memory_bytes: Some((host_memory_bytes / 2).max(GIB)),
            // BOUND: enough for a parallel build, far too few for a fork bomb to be felt.
            processes: 512,
            cpu_seconds: None,
            // BOUND: eight times the usual soft limit; servers and linkers are content with it.
            open_files: 8192,
            // BOUND: half of the disk bound; also caps what one memfd can pin in memory.
            file_bytes: Some(8 * GIB),
            disk_bytes: Some(16 * GIB),
            // BOUND: twice a large `node_modules`; each file made costs the host time to read it back.
            disk_inodes: Some(200_000),
            output_bytes: Some(GIB),
        }
    }

    /// One of them by name, in seconds, bytes or a count. `None`: there is no such bound.
    pub fn most(&self, limit: Limit) -> Option<u64> {
        match limit {
            Limit::Time => self.time_seconds,
            Limit::Memory => self.memory_bytes,
            Limit::Processes => Some(self.processes),
            Limit::Cpu => self.cpu_seconds,
            Limit::OpenFiles => Some(self.open_files),
            Limit::FileSize => self.file_bytes,
            Limit::Disk => self.disk_bytes,
            Limit::Inodes => self.disk_inodes,
            Limit::Output => self.output_bytes,
            Limit::Journal => None,
        }
    }
}

/// One bound by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Time,
    Memory,
    Processes,
    Cpu,
    OpenFiles,
    FileSize,
    Disk,
    Inodes,
    Output,
    Journal,
}

impl Limit {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 10] = [
        Self::Time,
        Self::Memory,
        Self::Processes,
        Self::Cpu,
        Self::OpenFiles,
        Self::FileSize,
        Self::Disk,
        Self::Inodes,
        Self::Output,
        Self::Journal,
    ];

    /// The word shown to people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::Cpu => "cpu",
            Self::OpenFiles => "open_files",
            Self::FileSize => "file_size",
            Self::Disk => "disk",
            Self::Inodes => "inodes",
            Self::Output => "output",
            Self::Journal => "journal",
        }
    }
}

/// How firmly a limit holds on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// The kernel refuses what goes beyond it.
    Hard,
    /// We look at short intervals and stop the run; it can overshoot for that long.
    Watched,
    /// Nothing holds it here.
    Absent,
}

impl Grade {
    /// The word shown to people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Watched => "watched",
            Self::Absent => "absent",
        }
    }
}

/// A limit with its grade and the mechanism behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graded {
    pub limit: Limit,
    pub grade: Grade,
    /// The mechanism, and for a watched limit how far it can overshoot.
    pub by: String,
}

/// What was typed for a size, a duration or a count and could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct QuantityError {
    text: String,
    expected: &'static str,
}

/// Reads `512M`, `4G`, `1.5GiB`, `1000` (bytes). `none` switches the bound off.
pub fn parse_size(text: &str) -> Result<Option<u64>, QuantityError> {
    let error = || QuantityError {
        text: text.to_owned(),
        expected: "a size such as `512M`, `4G` or `none`",
    };
    if text == "none" {
        return Ok(None);
    }
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(error()),
    };
    let value: f64 = number.parse().map_err(|_| error())?;
    let bytes = value * (1u64 << shift) as f64;
    // BOUND: 2^53 is where a float stops counting bytes exactly, and 9 PB is no limit.
    if !(1.0..=9_007_199_254_740_992.0).contains(&bytes) {
        return Err(error());
    }
    Ok(Some(bytes as u64))
}

/// Reads `90`, `90s`, `30m`, `2h`, `1d`, `1h30m`. `none` switches the bound off.
pub fn parse_duration_seconds(text: &str) -> Result<Option<u64>, QuantityError> {
    let error = || QuantityError {
        text: text.to_owned(),
        expected: "a duration such as `90s`, `30m`, `1h30m` or `none`",
    };
    if text == "none" {
        return Ok(None);
    }
    let mut total = 0u64;
    let mut digits = String::new();
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let factor = match c {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return Err(error()),
        };
        let value: u64 = digits.parse().map_err(|_| error())?;
        digits.clear();
        total = value
            .checked_mul(factor)
            .and_then(|seconds| total.checked_add(seconds))
            .ok_or_else(error)?;
    }
    if !digits.is_empty() {
        let value: u64 = digits.parse().map_err(|_| error())?;
        total = total.checked_add(value).ok_or_else(error)?;
    }
    // BOUND: ten years; beyond that a timer is a typing error.
    if total == 0 || total > 315_360_000 {
        return Err(error());
    }
    Ok(Some(total))
}

/// A number of bytes for a person to read.
#[derive(Clone, Copy, Debug)]
pub struct HumanBytes(pub u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in ["KiB", "MiB", "GiB", "TiB"] {
            if value < 1024.0 {
                break;
            }
            value /= 1024.0;
            unit = next;
        }
        if unit == "B" {
            write!(f, "{} B", self.0)
        } else {
            write!(f, "{value:.1} {unit}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, expected) in [
            ("1000", Some(Some(1000))),
            ("512M", Some(Some(512 << 20))),
            ("4G", Some(Some(4 << 30))),
            ("1.5GiB", Some(Some(3 << 29))),
            ("64k", Some(Some(65536))),
            ("none", Some(None)),
            ("", None),
            ("0", None),
            ("-1", None),
            ("4X", None),
            ("G", None),
            ("1..5M", None),
            ("99999999999T", None),
        ] {
            assert_eq!(parse_size(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn durations_read_as_people_write_them() {
        for (text, expected) in [
            ("90", Some(Some(90))),
            ("90s", Some(Some(90))),
            ("30m", Some(Some(1800))),
            ("1h30m", Some(Some(5400))),
            ("2d", Some(Some(172_800))),
            ("none", Some(None)),
            ("", None),
            ("0", None),
            ("m", None),
            ("1y", None),
            ("99999999999999999999", None),
            ("-5", None),
        ] {
            assert_eq!(parse_duration_seconds(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn bytes_are_shown_short() {
        assert_eq!(HumanBytes(17).to_string(), "17 B");
        assert_eq!(HumanBytes(1536).to_string(), "1.5 KiB");
        assert_eq!(HumanBytes(5 << 30).to_string(), "5.0 GiB");
    }
}
