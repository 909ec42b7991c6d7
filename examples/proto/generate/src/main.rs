//! Generates `shop.v1.rs` and `shop.v1.bin` from `shop.proto`.

use std::{error::Error, fs, path::Path};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no folder above")?;
    let descriptors = protox::compile([folder.join("shop.proto")], [folder])?;
    fs::write(folder.join("shop.v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().out_dir(folder).compile_fds(descriptors)?;
    Ok(())
}
