# docker build -t lightning_ding .
# docker run --rm -v "$PWD/runs:/work/runs" lightning_ding fit --policy dqn --data.env_id CartPole-v1 --data.max_env_step 50000
#
# PyTorch for CPUs. For GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128, and docker run --gpus all.
FROM python:3.11-slim-bookworm AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=flask
ENV PYTHONUNBUFFERED=1
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /tmp/constraints.txt --index-url "$TORCH_INDEX" torch \
    && wheel="$(find /wheels -name '*.whl')" \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt "${wheel}[${EXTRAS}]" \
    && useradd --create-home --uid 1000 ding \
    && mkdir /work \
    && chown ding /work
USER 1000
WORKDIR /work
ENTRYPOINT ["lightning-ding"]
CMD ["--help"]
