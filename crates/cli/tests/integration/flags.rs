//! What an agent claims next to what it did, and the flags of whole runs: R23, R24, R27, R28, and
//! the claim, output and patch cases of the attack list (each named by its id).

mod attacks;
mod claims;

use anyhow::{Result, ensure};
use serde_json::Value;

/// The flags of a result, as `severity kind`.
fn flags(result: &Value) -> Vec<String> {
    let list = result["flags"].as_array();
    list.into_iter()
        .flatten()
        .map(|flag| {
            let word = |key: &str| flag[key].as_str().unwrap_or_default().to_owned();
            format!("{} {}", word("severity"), word("kind"))
        })
        .collect()
}

fn has(result: &Value, flag: &str) -> Result<()> {
    ensure!(
        flags(result).iter().any(|found| found == flag),
        "no `{flag}` in {} {}",
        result["flags"],
        result["observed"]
    );
    Ok(())
}

fn lacks(result: &Value, kind: &str) -> Result<()> {
    ensure!(
        !flags(result).iter().any(|found| found.ends_with(kind)),
        "`{kind}` in {}",
        result["flags"]
    );
    Ok(())
}

/// The paths that the evidence of a kind names.
fn paths(result: &Value, kind: &str) -> Vec<String> {
    let list = result["flags"].as_array();
    list.into_iter()
        .flatten()
        .filter(|flag| flag["kind"] == kind)
        .flat_map(|flag| flag["evidence"].as_array().cloned().unwrap_or_default())
        .filter_map(|evidence| Some(evidence["path"].as_str()?.to_owned()))
        .collect()
}
