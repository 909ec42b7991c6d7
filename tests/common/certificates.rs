//! Certificates for localhost, created with `openssl`.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A certificate authority, and a key with a certificate signed by it. Dropping
/// this deletes the files.
pub(crate) struct Certificates {
    pub(crate) root: String,
    pub(crate) key: String,
    pub(crate) certificate: String,
    directory: PathBuf,
}

impl Certificates {
    /// `name` keeps the files separate from those of other tests.
    pub(crate) fn make(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("tower-ratelimit-tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let [root, key, certificate] = certify(&directory);
        Self { root, key, certificate, directory }
    }
}

impl Drop for Certificates {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn certify(directory: &Path) -> [String; 3] {
    let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let (root, root_key) = (file("root.pem"), file("root-key.pem"));
    let (certificate, key) = (file("certificate.pem"), file("key.pem"));
    let make = |arguments: &[&str]| {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
            .args(arguments)
            .output()
            .unwrap_or_else(|error| panic!("`openssl` is needed for this test: {error}"));
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    make(&["-subj", "/CN=root", "-keyout", &root_key, "-out", &root]);
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
    let signed = ["-CA", &root, "-CAkey", &root_key, "-addext", "basicConstraints=critical,CA:FALSE", "-addext", names];
    make(&[&["-subj", "/CN=localhost", "-keyout", &key, "-out", &certificate], &signed[..]].concat());
    [root, key, certificate]
}
