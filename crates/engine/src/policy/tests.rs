//! Files of the host and of a repository, on a disk.

use std::fs;
use std::path::PathBuf;

use ringfence_model::limits::Limit;
use tempfile::TempDir;

use super::*;

struct Bench {
    directory: TempDir,
    home: Home,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(Some(directory.path().join("home"))).unwrap();
        fs::create_dir(directory.path().join("repo")).unwrap();
        Self { directory, home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn host(&self, name: &str) -> Result<Effective, PolicyError> {
        of_host(&self.home, Some(&self.path(name)), None)
    }

    fn settle(&self, host: Effective) -> Result<Settled, PolicyError> {
        let asked = Asked {
            host,
            ..Asked::nothing(Limits::for_host(8 << 30))
        };
        asked.settle(&self.home, &self.path("repo"))
    }
}

fn hidden(policy: &Effective) -> Vec<&str> {
    let lines = policy.files.hide.iter();
    lines.map(|line| line.text.as_str()).collect()
}

#[test]
fn without_a_file_there_is_no_policy() {
    let bench = Bench::new();
    let policy = of_host(&bench.home, None, None).unwrap();
    assert_eq!(policy, Effective::default());
    let settled = bench.settle(policy).unwrap();
    assert_eq!(settled.limits, Limits::for_host(8 << 30));
    assert!(settled.env.is_empty() && settled.refused.is_empty());
}

#[test]
fn the_file_of_the_home_counts_and_a_named_one_counts_instead() {
    let bench = Bench::new();
    bench.write("home/policy.toml", "[limits]\nmemory = '1G'");
    let own = of_host(&bench.home, None, None).unwrap();
    let link = bench.path("home/policy.toml");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    assert!(of_host(&bench.home, None, None).is_err());
    assert_eq!(own.limits[&Limit::Memory].most, Some(1 << 30));
    assert!(hidden(&own).contains(&".env"), "it stands on `standard`");
    let named = of_host(&bench.home, Some(Path::new("offline")), None).unwrap();
    assert!(named.limits.is_empty() && named.files.hide.is_empty());
    let online = of_host(&bench.home, Some(Path::new("online")), None).unwrap();
    assert_eq!(online.network.rules.0.len(), 1);
    assert!(hidden(&online).contains(&".env"));
}

#[test]
fn files_stand_on_files_and_presets_of_the_user() {
    let bench = Bench::new();
    bench.write("home/presets/team.toml", "[files]\nhide = ['team']");
    bench.write(
        "shared/base.toml",
        "extends = 'offline'\n[files]\nhide = ['base']",
    );
    bench.write(
        "own/p.toml",
        "extends = ['../shared/base.toml', 'preset:team']\n[files]\nhide = ['own']",
    );
    let policy = bench.host("own/p.toml").unwrap();
    assert_eq!(hidden(&policy), ["base", "team", "own"]);
    assert!(policy.files.hide[0].from.file.ends_with("base.toml"));
}

#[test]
fn what_a_file_stands_on_must_be_there_and_end() {
    let bench = Bench::new();
    bench.write("a.toml", "extends = 'b.toml'");
    bench.write("b.toml", "# b\nextends = ['standard', './a.toml']");
    for n in 0..12 {
        bench.write(
            &format!("d{n}.toml"),
            &format!("extends = 'd{}.toml'", n + 1),
        );
    }
    bench.write("d12.toml", "");
    let wide: Vec<String> = (0..80).map(|n| format!("'w{n}.toml'")).collect();
    bench.write("wide.toml", &format!("extends = [{}]", wide.join(", ")));
    for n in 0..80 {
        bench.write(&format!("w{n}.toml"), "");
    }
    bench.write("none.toml", "extends = 'strict'");
    bench.write("up.toml", "extends = 'preset:../x'");
    bench.write("directory.toml", "extends = '.'");
    for (file, place, word) in [
        ("a.toml", "b.toml:2:25", "stands on itself"),
        ("d0.toml", "d7.toml:1:12", "at most 8"),
        ("wide.toml", "wide.toml:1:", "64 make one"),
        ("none.toml", "none.toml:1:12", "known by name are offline"),
        ("up.toml", "up.toml:1:12", "preset:NAME"),
        (
            "directory.toml",
            "directory.toml:1:12",
            "not a regular file",
        ),
    ] {
        let error = bench.host(file).unwrap_err().to_string();
        assert!(error.contains(place) && error.contains(word), "{error}");
        assert!(error.contains('^'), "{error}");
    }
    assert!(matches!(
        bench.host("gone.toml"),
        Err(PolicyError::NoFile(_))
    ));
    assert!(matches!(bench.host("repo"), Err(PolicyError::NotAFile(_))));
}

#[test]
fn a_repository_narrows_and_is_told_what_it_does_not_get() {
    let bench = Bench::new();
    bench.write(
        "repo/ringfence.toml",
        "\n[limits]\nmemory = '1G'\ntime = 'none'\n[env]\npass = ['TERM', 'TOKEN']",
    );
    let mut asked = Asked::nothing(Limits::for_host(8 << 30));
    asked.host = of_host(&bench.home, Some(Path::new("standard")), None).unwrap();
    for name in ["TERM", "LANG", "TOKEN"] {
        asked.caller.insert(name.to_owned(), name.into());
    }
    let settled = asked.settle(&bench.home, &bench.path("repo")).unwrap();
    assert_eq!(settled.limits.memory_bytes, Some(1 << 30));
    assert_eq!(settled.limits.time_seconds, Some(8 * 3600));
    assert_eq!(settled.env, [("TERM".into(), "TERM".into())]);
    let notes = settled.notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("ringfence.toml:6: `env.pass TOKEN` is ignored"));
    // What was typed counts more.
    let from = Default::default();
    let most = Some(2 << 30);
    asked
        .limits
        .insert(Limit::Memory, ringfence_model::policy::Bound { most, from });
    let settled = asked.settle(&bench.home, &bench.path("repo")).unwrap();
    assert_eq!(settled.limits.memory_bytes, Some(2 << 30));
}

/// HOSTILE: a repository must not make us read, show or wait for what is not its own.
#[test]
fn a_repository_reads_nothing_of_the_host() {
    let bench = Bench::new();
    let secret = bench.write("secret.toml", "hunter2 = 'x'");
    let proposal = bench.path("repo/ringfence.toml");
    for text in [
        format!("extends = '{}'", secret.display()),
        "extends = '../secret.toml'".to_owned(),
        "extends = 'preset:team'".to_owned(),
        "[[files.mount]]\nhost = '~/x'\ninside = '/x'".to_owned(),
    ] {
        fs::write(&proposal, &text).unwrap();
        let error = bench.settle(Effective::default()).unwrap_err().to_string();
        assert!(error.contains("ringfence.toml:"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    fs::remove_file(&proposal).unwrap();
    std::os::unix::fs::symlink(&secret, &proposal).unwrap();
    let error = bench.settle(Effective::default()).unwrap_err();
    assert!(matches!(error, PolicyError::NotAFile(_)), "{error}");
    fs::remove_file(&proposal).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &proposal, rustix::fs::Mode::RUSR).unwrap();
    let error = bench.settle(Effective::default()).unwrap_err();
    assert!(matches!(error, PolicyError::NotAFile(_)), "{error}");
}
