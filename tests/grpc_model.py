"""A model behind gRPC, a real server, whose answers wait to be released."""

import threading
from concurrent import futures

import grpc

ONE, MANY = "/llm.Model/Generate", "/llm.Model/GenerateStream"


class GrpcModel(grpc.GenericRpcHandler):
    """Answers when it is released; a stream sends one answer before."""

    def __init__(self):
        self.begun = []
        self.streaming = threading.Semaphore(0)
        self.closed = threading.Semaphore(0)
        self.released = threading.Event()

    def __enter__(self):
        self._pool = futures.ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers((self,))
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_error):
        self.released.set()
        self._server.stop(0).wait()
        self._pool.shutdown()

    @property
    def url(self):
        """Its address, under the name that other models have for theirs."""
        return self.target

    def service(self, details):
        if details.method == MANY:
            return grpc.unary_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, _request, context):
        self._begin(context)
        return b"done"

    def _stream(self, _request, context):
        yield b"first"
        self._begin(context)
        yield b"last"

    def _end(self):
        self.closed.release()
        self.released.set()  # a thread that waits for it would outlive the server

    def _begin(self, context):
        context.add_callback(self._end)
        self.begun.append(1)
        self.streaming.release()
        self.released.wait(60)
