//! What the gRPC examples serve.

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt, iter};
use tonic::{Request, Response, Status, Streaming};

use super::proto::{GetRequest, Imported, ListRequest, Product, products_server::Products};

/// Has a product of every name.
pub(crate) struct Shop;

type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Products for Shop {
    type ListStream = Sent<Product>;
    type AppraiseStream = Sent<Product>;

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Product>, Status> {
        let GetRequest { id } = request.into_inner();
        Ok(Response::new(Product { id, cents: 999 }))
    }

    /// There is no end of them: a caller has as many as it asks for.
    async fn list(&self, request: Request<ListRequest>) -> Result<Response<Self::ListStream>, Status> {
        let most = match request.into_inner().most {
            0 => 10,
            most => most,
        };
        let products = (1..=u64::from(most)).map(|n| Ok(Product { id: n.to_string(), cents: n }));
        Ok(Response::new(Box::pin(iter(products))))
    }

    async fn import(&self, request: Request<Streaming<Product>>) -> Result<Response<Imported>, Status> {
        let mut products = request.into_inner();
        let mut imported = Imported::default();
        while products.message().await?.is_some() {
            imported.products += 1;
        }
        Ok(Response::new(imported))
    }

    async fn appraise(&self, request: Request<Streaming<Product>>) -> Result<Response<Self::AppraiseStream>, Status> {
        let appraised = request.into_inner().map(|product| product.map(|product| Product { cents: 1, ..product }));
        Ok(Response::new(Box::pin(appraised)))
    }
}
