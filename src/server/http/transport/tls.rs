//! TLS with a certificate from files, which are read again when they change.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use lab_base::util::lock::lock;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The files are looked at no more often.
const LOOK: Duration = Duration::from_secs(1);

/// When the certificate and the key were written.
type Stamps = [Option<SystemTime>; 2];

/// A certificate with its chain, and its private key, in PEM.
#[derive(Debug)]
pub struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    state: Mutex<TlsState>,
}

#[derive(Debug)]
struct TlsState {
    config: Arc<ServerConfig>,
    stamps: Stamps,
    looked: Instant,
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read, or the key is not that of the certificate; with the path.
    pub fn open(certificate: PathBuf, key: PathBuf) -> Result<Self, String> {
        let state = TlsState {
            config: read(&certificate, &key)?,
            stamps: stamps(&certificate, &key),
            looked: Instant::now(),
        };
        Ok(Self {
            certificate,
            key,
            state: Mutex::new(state),
        })
    }

    /// Reads the files again now.
    pub fn reload(&self) {
        self.look(true);
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.look(false).into()
    }

    /// The certificate, read again if it has changed. One with a mistake changes nothing.
    fn look(&self, is_asked: bool) -> Arc<ServerConfig> {
        let mut state = lock(&self.state);
        if !is_asked && state.looked.elapsed() < LOOK {
            return Arc::clone(&state.config);
        }
        state.looked = Instant::now();
        let now = stamps(&self.certificate, &self.key);
        if is_asked || now != state.stamps {
            match read(&self.certificate, &self.key) {
                Ok(config) => {
                    let path = self.certificate.display();
                    tracing::info!(target: "server", "{path}: read again");
                    (state.config, state.stamps) = (config, now);
                }
                // The other file may follow soon.
                Err(error) => tracing::warn!("{error}; the certificate stays as it was"),
            }
        }
        Arc::clone(&state.config)
    }
}

fn stamps(certificate: &Path, key: &Path) -> Stamps {
    [certificate, key].map(|path| fs::metadata(path).and_then(|about| about.modified()).ok())
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let at = |path: &Path, error: String| format!("{}: {error}", path.display());
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| at(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(at(certificate, "has no certificate in PEM".into()));
    }
    let own = PrivateKeyDer::from_pem_file(key).map_err(|error| at(key, error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, own));
    let mut config = config.map_err(|error| at(key, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
