//! What a preset must not take, tell or do, and the presets of agents.

use std::fs;

use ringfence_model::host::Host;
use ringfence_model::policy::network::{RequestPath, Rules, Verdict};

use super::*;

#[test]
fn hostile_files_are_refused_by_name() {
    let place = Place::empty();
    for path in ["etc/pip.conf", "home/.config/uv/uv.toml"] {
        for (content, what) in [
            (b"[global]\nindex-url = \xff\xfe\n".to_vec(), "is not text"),
            (b"a\0b".to_vec(), "is not text"),
            (vec![b'#'; 2 << 20], "is larger"),
        ] {
            let full = place.file(path, content);
            let error = place.look("pypi").unwrap_err().to_string();
            assert!(error.contains(what) && error.contains(path), "{error}");
            fs::remove_file(full).unwrap();
        }
    }
    // What would be waited for is not.
    let fifo = place.path("home/.npmrc");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    let error = place.look("npm").unwrap_err();
    assert!(matches!(error, PresetError::NotAFile(_)), "{error}");
    // An error names no value.
    place.file(
        "home/.config/uv/uv.toml",
        "index-url = \"https://u:hunter2@a/\" x\n",
    );
    let error = format!("{:?}", place.look("pypi").unwrap_err());
    assert!(!error.contains("hunter2"), "{error}");
    fs::remove_file(place.path("home/.config/uv/uv.toml")).unwrap();
    place.file(
        "etc/pip.conf",
        "[global]\nindex-url = https://u:hunter2@a b/\n",
    );
    let error = format!("{:?}", place.look("pypi"));
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn nothing_is_taken_from_the_folder() {
    let mut place = Place::empty();
    let folder = place.path("home/folder");
    place.file(
        "home/folder/pip.conf",
        "[global]\nindex-url = https://evil.example/\n",
    );
    place.set("PIP_CONFIG_FILE", folder.join("pip.conf").to_str().unwrap());
    assert!(place.look("pypi").is_ok());
    assert!(place.look_from("pypi", Some(&folder)).is_err());
    // A link that leads there is no better.
    std::os::unix::fs::symlink(folder.join("pip.conf"), place.path("home/.npmrc")).unwrap();
    place.file("home/folder/.npmrc", "registry=https://evil.example/\n");
    assert!(place.look_from("npm", Some(&folder)).is_err());
    // Programs neither, however they are named.
    place.client("go", "echo '{\"GOPROXY\":\"https://go.example\"}'");
    let bin = place.path("bin");
    assert!(place.look_from("go", Some(&folder)).is_ok());
    assert!(place.look_from("go", Some(&bin)).is_err());
    std::os::unix::fs::symlink(&bin, place.path("other")).unwrap();
    place.set("PATH", place.path("other").to_str().unwrap());
    assert!(place.look_from("go", Some(&bin)).is_err());
    place.set("PATH", "bin:.:");
    assert!(place.look("go").is_err());
}

#[test]
fn this_machine_is_another_one_inside() {
    let mut place = Place::empty();
    place.set("PIP_INDEX_URL", "http://127.0.0.1:3141/root/pypi");
    place.set("PIP_EXTRA_INDEX_URL", "http://10.0.0.5/simple");
    let found = place.look("pypi").unwrap();
    assert_eq!(hosts(&found), ["10.0.0.5"]);
    assert!(found.notes[0].contains("127.0.0.1"), "{:?}", found.notes);
    assert!(!found.preset.indexes[0].public);
}

#[test]
fn what_is_configured_may_be_in_ones_own_network() {
    let mut place = Place::empty();
    place.set("PIP_INDEX_URL", "https://index.example/simple");
    let found = place.look("pypi").unwrap();
    let rule = &found.preset.rules[0];
    for (address, takes) in [
        ("10.1.2.3", true),
        ("192.168.1.1", true),
        ("203.0.113.80", true),
        ("127.0.0.1", false),
        ("169.254.169.254", false),
    ] {
        assert_eq!(rule.takes(address.parse().unwrap()), takes, "{address}");
    }
}

#[test]
fn agents_get_hosts_and_the_keys_that_are_there() {
    let mut place = Place::empty();
    let found = place.look("claude-code").unwrap();
    assert!(found.preset.secrets.is_empty());
    assert!(found.notes[0].contains("ANTHROPIC_API_KEY"));
    for (preset, name, host, header) in [
        (
            "claude-code",
            "ANTHROPIC_API_KEY",
            "api.anthropic.com",
            "x-api-key: {}",
        ),
        (
            "codex",
            "OPENAI_API_KEY",
            "api.openai.com",
            "Authorization: Bearer {}",
        ),
        (
            "gemini-cli",
            "GEMINI_API_KEY",
            "generativelanguage.googleapis.com",
            "x-goog-api-key: {}",
        ),
        (
            "aider",
            "DEEPSEEK_API_KEY",
            "api.deepseek.com",
            "Authorization: Bearer {}",
        ),
        (
            "opencode",
            "OPENCODE_API_KEY",
            "opencode.ai",
            "Authorization: Bearer {}",
        ),
    ] {
        place.set(name, "hunter2");
        let found = place.look(preset).unwrap();
        let secret = found
            .preset
            .secrets
            .iter()
            .find(|secret| secret.name == name)
            .unwrap();
        assert_eq!(secret.hosts[0].to_string(), host);
        assert_eq!(secret.header, header);
        assert!(hosts(&found).contains(&host.to_owned()));
        assert!(!shows(&found, "hunter2"), "{found:?}");
    }
    // A gateway takes the place of the host.
    place.set(
        "ANTHROPIC_BASE_URL",
        "https://gateway.corp.example/anthropic",
    );
    let found = place.look("claude-code").unwrap();
    assert!(!hosts(&found).contains(&"api.anthropic.com".to_owned()));
    assert_eq!(
        found.preset.secrets[0].hosts[0].to_string(),
        "gateway.corp.example"
    );
}

#[test]
fn git_over_https_reads_and_never_pushes() {
    let place = Place::empty();
    let rules = Rules(place.look("git-https").unwrap().preset.rules);
    let host = Host::parse("github.com").unwrap();
    for (method, path, allowed) in [
        ("GET", "/a/b.git/info/refs", true),
        ("POST", "/a/b.git/git-upload-pack", true),
        ("POST", "/a/b.git/git-receive-pack", false),
        ("POST", "/a/b/issues", false),
        ("PUT", "/a/b.git/git-upload-pack", false),
    ] {
        let path = RequestPath::parse(path).unwrap();
        let verdict = rules.request(&host, 443, method, &path);
        assert_eq!(matches!(verdict, Verdict::Allow(_)), allowed, "{method}");
    }
}

#[test]
fn every_preset_has_a_rule_or_says_why_not() {
    let place = Place::empty();
    for known in ALL {
        match place.look(known.name) {
            Ok(resolution) => assert!(!resolution.preset.rules.is_empty(), "{}", known.name),
            Err(PresetError::NoClient { preset, .. }) => assert_eq!(preset, known.name),
            Err(error) => panic!("{}: {error}", known.name),
        }
    }
}
