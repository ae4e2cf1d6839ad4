//! What real runs write is what the schemas in `docs/formats` say, and the schemas say no to
//! anything else.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use jsonschema::Validator;
use ringfence_model::bundle::attestation::Envelope;
use serde_json::{Map, Value, json};

use crate::support::in_each_mode;
use crate::verify::{ALL_KINDS, commit_all};

struct Schema {
    name: &'static str,
    validator: Validator,
}

impl Schema {
    fn read(name: &'static str) -> Result<Self> {
        let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats");
        let text = fs::read_to_string(formats.join(format!("{name}.schema.json")))?;
        let schema: Value = serde_json::from_str(&text)?;
        let validator = jsonschema::draft202012::new(&schema);
        Ok(Self {
            name,
            validator: validator.map_err(|error| anyhow!("{name}: {error}"))?,
        })
    }

    /// The value is valid, and with something more in it or something less it is not.
    fn holds(&self, value: &Value) -> Result<()> {
        let name = self.name;
        if let Some(error) = self.validator.iter_errors(value).next() {
            return Err(anyhow!(
                "{name}: {error} at {} in {value}",
                error.instance_path()
            ));
        }
        let mut more = value.clone();
        more["unknown"] = json!(1);
        ensure!(!self.validator.is_valid(&more), "{name} takes anything");
        let first = value.as_object().and_then(|map| map.keys().next());
        let mut less = value.clone();
        let removed = first.and_then(|first| less.as_object_mut()?.remove(first));
        ensure!(
            removed.is_some() && !self.validator.is_valid(&less),
            "{name} needs nothing"
        );
        Ok(())
    }
}

/// Every file of a bundle against its schema.
fn check(bundle: &Path) -> Result<()> {
    let read = |name: &str| -> Result<Value> {
        let text = fs::read(bundle.join(name)).with_context(|| name.to_owned())?;
        Ok(serde_json::from_slice(&text)?)
    };
    Schema::read("manifest")?.holds(&read("manifest.json")?)?;
    let result = read("result.json")?;
    Schema::read("result")?.holds(&result)?;
    // Some fields have a schema of their own; older bundles do not have them.
    let own: Map<String, Value> = ["line_counts", "claimed", "observed", "flags"]
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), result.get(name)?.clone())))
        .collect();
    if !own.is_empty() {
        Schema::read("review")?.holds(&Value::Object(own))?;
    }
    let attestation = read("attestation.json")?;
    Schema::read("attestation")?.holds(&attestation)?;
    let envelope: Envelope = serde_json::from_value(attestation)?;
    let (payload, ..) = envelope.open().context("not an envelope of ours")?;
    Schema::read("statement")?.holds(&serde_json::from_slice(&payload)?)?;
    let audit = Schema::read("audit")?;
    let journal = fs::read_to_string(bundle.join("audit.jsonl"))?;
    ensure!(journal.lines().count() >= 7, "{journal}");
    for line in journal.lines() {
        audit.holds(&serde_json::from_str(line)?)?;
    }
    Ok(())
}

/// All that needs no gate.
const POLICY: &str = "\
[files]
hide = ['x', '*.pem']
read_only = ['y']
export = ['**']
[env]
pass = ['LANG']
set = { A = '1' }
[limits]
memory = '512M'
disk = 'none'
[review]
checks = ['exit 1']
protected = ['z']
";

#[test]
fn r24_what_a_run_writes_is_what_the_schemas_say() -> Result<()> {
    in_each_mode("schemas", |env, fixture| {
        let named = ["--name", "named", "--hide", "secret*", "--env", "A=b"];
        let policy = fixture.folder.with_file_name("schemas-policy.toml");
        fs::write(&policy, POLICY)?;
        let policy = ["--policy", policy.to_str().context("a path")?];
        for (options, shell) in [
            (&policy[..], ALL_KINDS),
            (&named[..], ALL_KINDS),
            (&["--timeout", "1s"], "sleep 1000 & sleep 1000"),
            (
                &["--disk", "3M"],
                "head -c 9000000 /dev/zero > large; sleep 1000",
            ),
            (
                &[],
                "mkfifo f; mkdir ignored; echo i > ignored/i; kill -9 $$",
            ),
            (&[], "/nonexistent; ln a.txt b.txt; exit 3"),
            (
                &[
                    "--check",
                    "echo 'FAILED t.py::x'; echo '1 failed in 0.1s'; test -e tests/a",
                ],
                "mkdir tests; echo > tests/a",
            ),
            (
                &[
                    "--iterations",
                    "3",
                    "--check",
                    "echo '1 failed'; grep -q 2 n",
                ],
                "echo $RINGFENCE_ITERATION > n",
            ),
            (
                &["--iterations", "2", "--stay", "--check", "test -e n"],
                "read -r line; echo 1 > n; echo $RINGFENCE_TURN; exec sleep 1000",
            ),
        ] {
            let result = env.run_with(fixture, options, shell)?;
            let bundle = result["bundle"].as_str().context("no bundle")?;
            check(Path::new(bundle)).with_context(|| shell.to_owned())?;
        }
        commit_all(env, fixture)?;
        let commit = "git add -A; git -c user.name=A -c user.email=a@b commit -qm all";
        let result = env.run_with(fixture, &[], &format!("{ALL_KINDS}\n{commit}"))?;
        ensure!(result["commits"]["objects"].as_u64() > Some(2), "{result}");
        check(Path::new(result["bundle"].as_str().context("no bundle")?))
    })
}

#[test]
fn r24_the_golden_bundle_is_what_the_schemas_say() -> Result<()> {
    let formats = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats");
    check(&formats.join("golden/bundle"))
}
