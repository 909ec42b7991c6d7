//! The service of the gRPC examples.

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt, iter};
use tonic::{Request, Response, Status, Streaming};

use super::proto::{GetRequest, Imported, ListRequest, Product, products_server::Products};

/// Returns a product for every name.
pub(crate) struct Shop;

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Products for Shop {
    type ListStream = ResponseStream<Product>;
    type AppraiseStream = ResponseStream<Product>;

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<Product>, Status> {
        let GetRequest { id } = request.into_inner();
        Ok(Response::new(Product { id, cents: 999 }))
    }

    /// Returns as many products as the caller asks for; 10 by default.
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
