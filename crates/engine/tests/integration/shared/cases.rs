//! How often random tests try.

/// So often, unless the environment says otherwise.
pub fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok());
    asked.unwrap_or(40)
}
