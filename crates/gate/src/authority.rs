//! The authority that the inside trusts: lives in the memory of this process, for one sandbox, and
//! vouches for hosts that are looked into.
//!
//! INVARIANT: its key and those of its certificates are in no file and in no message.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use ringfence_model::host::Host;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How far back certificates begin, for clocks that differ.
const BEFORE: Duration = Duration::from_secs(2 * 24 * 3600);
/// BOUND: how long they hold; no sandbox lives so long, and clients take no longer ones.
const AFTER: Duration = Duration::from_secs(365 * 24 * 3600);
/// BOUND: certificates that are kept; more are made again.
const MAX_KEPT: usize = 1024;

pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// One key for all certificates: who has one has this process.
    key: KeyPair,
    made: RefCell<HashMap<Host, Arc<ServerConfig>>>,
}

impl Authority {
    pub(crate) fn new() -> io::Result<Self> {
        let mut params = CertificateParams::default();
        let own = "Ringfence sandbox (this run only)";
        params.distinguished_name.push(DnType::CommonName, own);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        set_time(&mut params);
        let key = KeyPair::generate().map_err(io::Error::other)?;
        Ok(Self {
            issuer: CertifiedIssuer::self_signed(params, key).map_err(io::Error::other)?,
            key: KeyPair::generate().map_err(io::Error::other)?,
            made: RefCell::default(),
        })
    }

    /// The certificate (PEM) that the inside must trust.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// How a host is played towards the inside.
    pub(crate) fn server(&self, host: &Host) -> io::Result<Arc<ServerConfig>> {
        if let Some(made) = self.made.borrow().get(host) {
            return Ok(made.clone());
        }
        let config = Arc::new(self.make(host)?);
        let mut made = self.made.borrow_mut();
        if made.len() >= MAX_KEPT {
            made.clear();
        }
        made.insert(host.clone(), config.clone());
        Ok(config)
    }

    fn make(&self, host: &Host) -> io::Result<ServerConfig> {
        let name = match host {
            Host::Name(name) => name.clone(),
            Host::Address(address) => address.to_string(),
        };
        let mut params = CertificateParams::new(vec![name.clone()]).map_err(io::Error::other)?;
        // A common name has 64 bytes at most; clients look at the other names anyway.
        if name.len() <= 64 {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_time(&mut params);
        let leaf = params
            .signed_by(&self.key, &self.issuer)
            .map_err(io::Error::other)?;
        let chain: Vec<CertificateDer<'static>> = vec![leaf.der().clone()];
        let key = PrivateKeyDer::Pkcs8(self.key.serialize_der().into());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(io::Error::other)?;
        config.alpn_protocols = [&b"h2"[..], b"http/1.1", b"http/1.0"]
            .map(<[u8]>::to_vec)
            .into();
        Ok(config)
    }
}

fn set_time(params: &mut CertificateParams) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(BEFORE);
    params.not_after = epoch + now.saturating_add(AFTER);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_vouched_for_once() {
        let authority = Authority::new().expect("keys");
        assert!(authority.pem().contains("BEGIN CERTIFICATE"));
        assert!(!authority.pem().contains("PRIVATE"));
        for host in ["a.example", "10.1.2.3", "[fd00::1]", &"a.".repeat(100)] {
            let host = Host::parse(&format!("{host}b")).or_else(|_| Host::parse(host));
            let host = host.expect("a host");
            let first = authority.server(&host).expect("a certificate");
            let second = authority.server(&host).expect("a certificate");
            assert!(Arc::ptr_eq(&first, &second), "{host}");
        }
    }

    #[test]
    fn no_two_sandboxes_have_the_same_authority() {
        let (one, two) = (Authority::new(), Authority::new());
        assert_ne!(one.expect("keys").pem(), two.expect("keys").pem());
    }
}
