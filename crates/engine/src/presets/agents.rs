//! Presets for agents: the hosts that their published clients ask for models and sign-in, and the
//! keys that go there. Hosts that only collect what users do are left out.
//!
//! A key is used where the caller's environment has it. The agent gets a placeholder.

use ringfence_model::host::HostPattern;
use ringfence_model::policy::network::RuleError;

use super::PresetError;
use super::draft::Draft;
use super::surroundings::Surroundings;

const BEARER: &str = "Authorization: Bearer {}";

/// An interface to models.
struct Provider {
    /// What must be allowed.
    rules: &'static [&'static str],
    /// Where its keys go, unless a variable names another place.
    host: &'static str,
    /// The variable with which its clients are sent to a gateway.
    base: Option<&'static str>,
    /// Variables with keys, and the header of each.
    keys: &'static [(&'static str, &'static str)],
}

const ANTHROPIC: Provider = Provider {
    rules: &["api.anthropic.com:443"],
    host: "api.anthropic.com",
    base: Some("ANTHROPIC_BASE_URL"),
    keys: &[
        ("ANTHROPIC_API_KEY", "x-api-key: {}"),
        ("ANTHROPIC_AUTH_TOKEN", BEARER),
        ("CLAUDE_CODE_OAUTH_TOKEN", BEARER),
    ],
};
const OPENAI: Provider = Provider {
    rules: &["api.openai.com:443"],
    host: "api.openai.com",
    base: Some("OPENAI_BASE_URL"),
    keys: &[("OPENAI_API_KEY", BEARER), ("CODEX_API_KEY", BEARER)],
};
const GEMINI: Provider = Provider {
    rules: &["generativelanguage.googleapis.com:443"],
    host: "generativelanguage.googleapis.com",
    base: Some("GOOGLE_GEMINI_BASE_URL"),
    keys: &[
        ("GEMINI_API_KEY", "x-goog-api-key: {}"),
        ("GOOGLE_API_KEY", "x-goog-api-key: {}"),
    ],
};
const OPENROUTER: Provider = Provider {
    rules: &["openrouter.ai:443/api/**"],
    host: "openrouter.ai",
    base: None,
    keys: &[("OPENROUTER_API_KEY", BEARER)],
};
const DEEPSEEK: Provider = Provider {
    rules: &["api.deepseek.com:443"],
    host: "api.deepseek.com",
    base: None,
    keys: &[("DEEPSEEK_API_KEY", BEARER)],
};
const ZEN: Provider = Provider {
    rules: &["opencode.ai:443/zen/**"],
    host: "opencode.ai",
    base: None,
    keys: &[("OPENCODE_API_KEY", BEARER)],
};

/// Allows an interface and binds its keys; whether there is a key.
fn provider(
    surroundings: &Surroundings,
    draft: &mut Draft,
    provider: &Provider,
) -> Result<bool, RuleError> {
    let gateway = provider.base.and_then(|name| surroundings.setting(name));
    let mut hosts = Vec::new();
    if let (Some(setting), Some(name)) = (&gateway, provider.base) {
        if let Some(address) = draft.address(setting) {
            draft.any_request(&address, setting);
            draft.set(name, address.url());
            hosts.push(HostPattern::Exact(address.host));
        }
    } else {
        for rule in provider.rules {
            draft.rule(rule)?;
        }
        hosts.extend(HostPattern::parse(provider.host));
    }
    let mut has = false;
    if !hosts.is_empty() {
        for (name, header) in provider.keys {
            has |= draft.secret(surroundings, name, &hosts, header);
        }
    }
    Ok(has)
}

/// Of several interfaces, those that the caller has a key for.
fn providers(
    surroundings: &Surroundings,
    draft: &mut Draft,
    all: &[Provider],
) -> Result<(), RuleError> {
    let mut any = false;
    for one in all {
        let has = |(name, _): &(&str, &str)| surroundings.variable(name).is_some();
        if one.keys.iter().any(has) {
            any |= provider(surroundings, draft, one)?;
        }
    }
    if !any {
        let names: Vec<&str> = all.iter().map(|one| one.keys[0].0).collect();
        draft.note(format!(
            "no interface to models is allowed: none of {} is set here",
            names.join(", ")
        ));
    }
    Ok(())
}

/// Says so where an agent will have to sign in.
fn without_key(draft: &mut Draft, has: bool, name: &str) {
    if !has {
        draft.note(format!(
            "{name} is not set here, so no secret is bound; set it, or sign in inside"
        ));
    }
}

/// INVARIANT: the rules in this file can be read; a test reads each.
fn readable(result: Result<(), RuleError>) -> Result<(), PresetError> {
    result.expect("a rule of our own that cannot be read");
    Ok(())
}

/// One interface and its keys, without signing in.
fn by_key(
    surroundings: &Surroundings,
    draft: &mut Draft,
    one: &Provider,
) -> Result<(), PresetError> {
    let fill = |draft: &mut Draft| {
        let has = provider(surroundings, draft, one)?;
        if !has {
            let name = one.keys[0].0;
            draft.note(format!("{name} is not set here, so no secret is bound"));
        }
        Ok(())
    };
    readable(fill(draft))
}

pub(super) fn anthropic_api(
    surroundings: &Surroundings,
    draft: &mut Draft,
) -> Result<(), PresetError> {
    by_key(surroundings, draft, &ANTHROPIC)
}

pub(super) fn openai_api(
    surroundings: &Surroundings,
    draft: &mut Draft,
) -> Result<(), PresetError> {
    by_key(surroundings, draft, &OPENAI)
}

pub(super) fn gemini_api(
    surroundings: &Surroundings,
    draft: &mut Draft,
) -> Result<(), PresetError> {
    by_key(surroundings, draft, &GEMINI)
}

pub(super) fn claude_code(
    surroundings: &Surroundings,
    draft: &mut Draft,
) -> Result<(), PresetError> {
    let fill = |draft: &mut Draft| {
        let has = provider(surroundings, draft, &ANTHROPIC)?;
        without_key(draft, has, "ANTHROPIC_API_KEY");
        for rule in [
            "POST platform.claude.com:443/v1/oauth/token",
            "POST console.anthropic.com:443/v1/oauth/token",
            "GET,HEAD claude.ai:443/oauth/**",
        ] {
            draft.rule(rule)?;
        }
        draft.set("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
        Ok(())
    };
    readable(fill(draft))
}

pub(super) fn codex(surroundings: &Surroundings, draft: &mut Draft) -> Result<(), PresetError> {
    let fill = |draft: &mut Draft| {
        let has = provider(surroundings, draft, &OPENAI)?;
        without_key(draft, has, "OPENAI_API_KEY");
        draft.rule("chatgpt.com:443/backend-api/**")?;
        draft.rule("auth.openai.com:443")
    };
    readable(fill(draft))
}

pub(super) fn gemini_cli(
    surroundings: &Surroundings,
    draft: &mut Draft,
) -> Result<(), PresetError> {
    let fill = |draft: &mut Draft| {
        let has = provider(surroundings, draft, &GEMINI)?;
        without_key(draft, has, "GEMINI_API_KEY");
        for rule in [
            "cloudcode-pa.googleapis.com:443",
            "POST oauth2.googleapis.com:443/**",
            "GET,HEAD www.googleapis.com:443/oauth2/**",
        ] {
            draft.rule(rule)?;
        }
        draft.set("GEMINI_TELEMETRY_ENABLED", "false");
        Ok(())
    };
    readable(fill(draft))
}

pub(super) fn opencode(surroundings: &Surroundings, draft: &mut Draft) -> Result<(), PresetError> {
    let fill = |draft: &mut Draft| {
        // Which models there are.
        draft.rule("GET,HEAD models.dev:443")?;
        draft.rule("GET,HEAD models.opencode.ai:443")?;
        draft.set("OPENCODE_DISABLE_AUTOUPDATE", "true");
        let all = [ZEN, ANTHROPIC, OPENAI, GEMINI, OPENROUTER, DEEPSEEK];
        providers(surroundings, draft, &all)
    };
    readable(fill(draft))
}

pub(super) fn aider(surroundings: &Surroundings, draft: &mut Draft) -> Result<(), PresetError> {
    let fill = |draft: &mut Draft| {
        // What each model can do and costs.
        draft.rule("GET,HEAD raw.githubusercontent.com:443/BerriAI/litellm/main/*")?;
        draft.set("AIDER_ANALYTICS", "false");
        draft.set("AIDER_CHECK_UPDATE", "false");
        let all = [ANTHROPIC, OPENAI, GEMINI, OPENROUTER, DEEPSEEK];
        providers(surroundings, draft, &all)
    };
    readable(fill(draft))
}

/// Clone and fetch. What pushes is another path, which no rule here has.
pub(super) fn git_https(_: &Surroundings, draft: &mut Draft) -> Result<(), PresetError> {
    let fill = |draft: &mut Draft| {
        for host in ["github.com", "gitlab.com"] {
            draft.rule(&format!("GET,HEAD {host}:443"))?;
            draft.rule(&format!("POST {host}:443/**/git-upload-pack"))?;
        }
        Ok(())
    };
    readable(fill(draft))
}
